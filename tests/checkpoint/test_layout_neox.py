"""GPT-NeoX's folder: cut over ranks and merged again bit for bit, and what the arithmetic of two ranks asks of biases."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from layouts import ADAM, adam_state, covers, stateful, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    layout_of,
    open_state,
    plain_options,
    read_all,
    survey,
    write_layout,
)
from pretrace.checkpoint.neox_settings import neox_settings
from pretrace.checkpoint.widened import share_of
from pretrace.errors import PretraceError


@pytest.mark.parametrize("pipeline", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
def test_weights_cut_over_ranks_are_merged_again_bit_for_bit(family, ranks, pipeline, tmp_path):
    spec = tiny_spec(family)
    weights = tiny_weights(spec)
    view = ArraysView(weights, metadata={"step": 5})
    layout = layout_of("neox", view, spec, plain_options(view, tensor_parallel=ranks, pipeline=pipeline))
    assert all(covers(file) for file in layout.files)
    write_layout(layout, tmp_path)
    seen = survey(tmp_path, deep=True)
    assert (seen.findings, seen.step, seen.format) == ((), 5, "neox")
    ours = canonical(seen.view)
    assert set(ours.names()) == set(weights)
    assert all((read_all(ours, name) == array).all() for name, array in weights.items())
    for file in tmp_path.rglob("*.pt"):
        torch.load(file, weights_only=True)


def test_files_are_those_of_neox():
    spec = tiny_spec("gpt_neox")
    view = stateful(spec)
    layout = layout_of("neox", view, spec, plain_options(view, tensor_parallel=2, data_parallel=2))
    paths = [file.path.removeprefix("global_step5/") for file in layout.files]
    layers = [f"layer_{layer:02d}-model_{rank:02d}-model_states.pt" for layer in (0, 2, 3, 4, 6, 7) for rank in (0, 1)]
    ranks = [f"mp_rank_{rank:02d}_model_states.pt" for rank in (0, 1)]
    state = [f"zero_pp_rank_{piece}_mp_rank_{rank:02d}_optim_states.pt" for rank in (0, 1) for piece in (0, 1)]
    assert paths == [*layers, *ranks, *state, "configs/pretrace.yml", "latest"]


def test_todays_names_are_written_on_request(tmp_path):
    spec = tiny_spec("gpt_neox")
    view = ArraysView(tiny_weights(spec))
    write_layout(layout_of("neox", view, spec, plain_options(view, neox_linear1=True)), tmp_path)
    layer = torch.load(tmp_path / "global_step0/layer_02-model_00-model_states.pt", weights_only=True)
    assert {"mlp.linear1.weight", "mlp.linear2.bias"} <= set(layer)


def test_a_vocabulary_that_is_not_cut_evenly_is_refused():
    spec = tiny_spec("gpt_neox", vocab_size=13)
    view = ArraysView(tiny_weights(spec))
    with pytest.raises(PretraceError, match=r"13 rows .* are not cut evenly over 2"):
        layout_of("neox", view, spec, plain_options(view, tensor_parallel=2))
    with pytest.raises(PretraceError, match="4 heads"):
        layout_of("neox", view, spec, plain_options(view, tensor_parallel=3))


def test_settings_say_the_fused_tanh_gelu_and_the_two_thirds_of_a_gated_width():
    def said(spec):
        return neox_settings(spec, "bfloat16", tensor_parallel=2, pipeline=True, linear1=True)

    assert said(tiny_spec("gpt2"))["bias_gelu_fusion"] is True
    assert said(tiny_spec("gpt_neox"))["bias_gelu_fusion"] is False
    gated = said(tiny_spec("llama"))
    assert int(gated["intermediate_size"] * 2 / 3) == 2 * 96
    assert (gated["num_kv_heads"], gated["precision"], gated["make_vocab_size_divisible_by"]) == (2, "bfloat16", 6)


HALVES = hnp.arrays(np.uint16, 8)


@given(HALVES, st.sampled_from(["float16", "bfloat16"]), st.sampled_from([2, 4, 8]))
def test_addends_of_a_bias_sum_to_it_bit_for_bit(bits, name, ranks):
    stored = bits.view(np.float16) if name == "float16" else bits
    parts = [share_of(stored, name, rank, ranks) for rank in range(ranks)]
    arrays = {str(rank): part for rank, part in enumerate(parts)}
    from pretrace.checkpoint.rewired import RewiredView
    from pretrace.checkpoint.tensor_parallel import merged

    base = ArraysView(arrays, dtypes=dict.fromkeys(arrays, name))
    infos = {int(rank): base.info(rank) for rank in arrays}
    whole = RewiredView(base, {"b": merged("b", infos, "row_bias", sum_biases=True)})
    got, wanted = (np.asarray(a).view(np.uint16) for a in (read_all(whole, "b"), stored))
    wide = torch.from_numpy(bits.copy()).view(getattr(torch, name))
    negative_zero = (wide == 0).numpy()  # -0 and 0 sum to 0
    assert ((got == wanted) | torch.isnan(wide).numpy() | negative_zero).all()


def block(x, weights, ranks, parallel):
    """One NeoX block without norms and heads: attention is a linear, the feed-forward a linear, relu, linear.

    Each rank holds a half of the inner width and its own biases of the row-parallel linears. With the parallel residual a
    rank adds its bias before the one all-reduce; without, the bias is added after it, once (transformer.py, ea7aefd8).
    """
    v, out, up, down, out_bias, down_bias = weights

    def halves(t, axis):
        return np.split(t, ranks, axis)

    attention = [x @ a.T @ b.T for a, b in zip(halves(v, 0), halves(out, 1))]

    def feed(y):
        return [np.maximum(y @ a.T, 0) @ b.T for a, b in zip(halves(up, 0), halves(down, 1))]

    if parallel:
        return x + sum(a + o + f + d for a, o, f, d in zip(attention, out_bias, feed(x), down_bias))
    y = x + sum(attention) + out_bias[0]
    return y + sum(feed(y)) + down_bias[0]


@pytest.mark.parametrize("parallel", [True, False])
def test_two_ranks_compute_what_one_does_only_with_biases_by_the_rule_of_their_residual(parallel, tmp_path):
    rng = np.random.default_rng(0)
    spec = tiny_spec("gpt_neox", residual="parallel" if parallel else "sequential")
    arrays = {name: rng.standard_normal(a.shape).astype(np.float32) for name, a in tiny_weights(spec).items()}
    view = ArraysView(arrays)
    write_layout(layout_of("neox", view, spec, plain_options(view, tensor_parallel=2)), tmp_path)
    stored = [
        torch.load(tmp_path / f"global_step0/layer_02-model_0{r}-model_states.pt", weights_only=True) for r in (0, 1)
    ]
    biases = [[s[f"{name}.bias"].numpy() for s in stored] for name in ("attention.dense", "mlp.dense_4h_to_h")]
    b = {name.removeprefix("blocks.0."): a.astype(np.float64) for name, a in arrays.items()}
    linears = (b["attn.v.weight"], b["attn.out.weight"], b["mlp.up.weight"], b["mlp.down.weight"])
    x = rng.standard_normal((3, 64))
    one = block(x, (*linears, [b["attn.out.bias"]], [b["mlp.down.bias"]]), 1, parallel)
    two = block(x, (*linears, *biases), 2, parallel)
    assert np.abs(two - one).max() < 1e-4
    with open_state(tmp_path) as seen:
        assert (read_all(canonical(seen), "blocks.0.attn.out.bias") == arrays["blocks.0.attn.out.bias"]).all()
    # What GPT-NeoX's two converters do: halves on the way in, the sum on the way out, whatever the residual.
    halved = [[bias[0] / 2, bias[0] / 2] for bias in ([b["attn.out.bias"]], [b["mlp.down.bias"]])]
    error = np.abs(block(x, (*linears, *halved), 2, parallel) - one).max()
    assert (error < 1e-9) if parallel else (error > 0.5)


DEEPSPEED = """
import os, sys, torch
folder = sys.argv[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # needs a compiler, is not needed
deepspeed.init_distributed("gloo")
shapes = torch.load(f"{folder}/global_step5/mp_rank_00_model_states.pt", weights_only=True)["param_shapes"]
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for group in shapes:
            for name, shape in group.items():
                *path, last = name.split(".")
                here = self
                for part in path:
                    if part not in here._modules: here.add_module(part, torch.nn.Module())
                    here = here._modules[part]
                here.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
model = Model()
named = dict(model.named_parameters())
groups = [{"params": [named[n] for n in group]} for group in shapes]
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
          "gradient_clipping": 0.0}
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(groups, lr=9.0))
engine.load_checkpoint(folder)
base = engine.optimizer.optimizer
loaded = {name: p.detach().clone() for name, p in named.items()}
engine.backward(sum(p.sum() for p in engine.module.parameters()))  # every gradient is 1
engine.step()
updated = {name: p.detach().clone() for name, p in named.items()}
torch.save((loaded, updated, engine.global_steps, [g["lr"] for g in base.param_groups]), f"{folder}.got")
"""


def next_update(weight, moments, decay):
    """One step of torch's AdamW after 5, the gradient 1 everywhere."""
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    settings = {key: ADAM[key] for key in ("lr", "betas", "eps")}
    optimizer = torch.optim.AdamW([parameter], weight_decay=decay, **settings)
    m, v = (torch.from_numpy(moment.copy()) for moment in moments)
    optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": m, "exp_avg_sq": v}
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return parameter.detach()


@pytest.mark.interop
def test_deepspeed_resumes_from_the_zero_1_state(tmp_path):
    import socket

    spec = tiny_spec("gpt_neox")
    view = stateful(spec)
    folder = tmp_path / "n"
    folder.mkdir()
    write_layout(layout_of("neox", view, spec, plain_options(view, pipeline=False)), folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    subprocess.run([sys.executable, "-c", DEEPSPEED, str(folder), port], check=True, timeout=110)
    loaded, updated, step, lrs = torch.load(f"{folder}.got")
    assert (step, set(lrs)) == (6, {ADAM["lr"]})
    weights, state = tiny_weights(spec), adam_state(spec)
    for theirs, ours, decay in (("sequential.3.mlp.dense_h_to_4h.weight", "blocks.1.mlp.up.weight", 0.1),
                                ("sequential.6.norm.bias", "final_norm.bias", 0.0)):  # fmt: skip
        moments = [state[f"optimizer.{kind}.{ours}"] for kind in ("exp_avg", "exp_avg_sq")]
        assert torch.equal(loaded[theirs], torch.from_numpy(weights[ours]))
        assert torch.equal(updated[theirs], next_update(weights[ours], moments, decay))
