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
from pretrace.checkpoint.layout_zero import Flat
from pretrace.checkpoint.neox_settings import neox_settings
from pretrace.checkpoint.rewired import RewiredView
from pretrace.checkpoint.tensor_parallel import merged, split
from pretrace.checkpoint.united import United
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
    with pytest.raises(PretraceError, match="--pad-vocab 14"):
        layout_of("neox", view, spec, plain_options(view, tensor_parallel=2))
    with pytest.raises(PretraceError, match="4 heads"):
        layout_of("neox", view, spec, plain_options(view, tensor_parallel=3))


def test_queries_and_fewer_keys_are_each_cut_over_the_ranks():
    # 6 query heads and 3 of keys and values, one row each, on 3 ranks: 12 rows are no multiple of 3 x (6 + 3 + 3).
    view = ArraysView({"qkv": np.arange(12, dtype=np.float32).reshape(12, 1)})
    parts = split(view.info("qkv"), "parts", 3, ["0", "1", "2"], (6, 3, 3))
    cut = RewiredView(view, dict(zip("012", parts, strict=True)))
    assert [read_all(cut, rank).ravel().tolist() for rank in "012"] == [[0, 1, 6, 9], [2, 3, 7, 10], [4, 5, 8, 11]]


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
    base = ArraysView(arrays, dtypes=dict.fromkeys(arrays, name))
    infos = {int(rank): base.info(rank) for rank in arrays}
    whole = RewiredView(base, {"b": merged("b", infos, "row_bias", sum_biases=True)})
    got, wanted = (np.asarray(a).view(np.uint16) for a in (read_all(whole, "b"), stored))
    wide = torch.from_numpy(bits.copy()).view(getattr(torch, name))
    negative_zero = (wide == 0).numpy()  # -0 and 0 sum to 0
    assert ((got == wanted) | torch.isnan(wide).numpy() | negative_zero).all()


def attention(x, qkv, bias, heads):
    """Causal softmax attention of one rank's heads; rows of the fused weight go q, k, v head by head (no rotary here)."""
    q, k, v = (x @ qkv.T + bias).reshape(len(x), heads, 3, -1).transpose(2, 1, 0, 3)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores) * np.tri(len(x))
    return ((weights / weights.sum(-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(len(x), -1)


def norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def block(x, ranks, parallel):
    """One block of GPT-NeoX computed by all `ranks`, each with the tensors of its file; sums over ranks are the all-reduces.

    With gpt_j_residual a rank adds its own biases of the row-parallel linears before the one all-reduce; without, the bias is
    added after each all-reduce, once, from the rank's own copy (ParallelTransformerLayer.forward, transformer.py, ea7aefd8).
    """
    heads = 4 // len(ranks)

    def normed(y, name, r):
        return norm(y, r[f"{name}.weight"], r[f"{name}.bias"])

    def attend(y, r):
        fused, bias = r["attention.query_key_value.weight"], r["attention.query_key_value.bias"]
        return attention(normed(y, "input_layernorm", r), fused, bias, heads) @ r["attention.dense.weight"].T

    def feed(y, r):
        up = normed(y, "post_attention_layernorm", r) @ r["mlp.dense_h_to_4h.weight"].T + r["mlp.dense_h_to_4h.bias"]
        return np.maximum(up, 0) @ r["mlp.dense_4h_to_h.weight"].T

    out, down = "attention.dense.bias", "mlp.dense_4h_to_h.bias"
    if parallel:
        return x + sum(attend(x, r) + r[out] + feed(x, r) + r[down] for r in ranks)
    y = x + sum(attend(x, r) for r in ranks) + ranks[0][out]
    return y + sum(feed(y, r) for r in ranks) + ranks[0][down]


def block_of(folder, arrays, spec, n):
    """Block 0 as each of `n` ranks' files hold it, widened."""
    view = ArraysView(arrays)
    write_layout(layout_of("neox", view, spec, plain_options(view, tensor_parallel=n)), folder)
    files = [folder / f"global_step0/layer_02-model_{rank:02d}-model_states.pt" for rank in range(n)]
    return [{k: t.double().numpy() for k, t in torch.load(f, weights_only=True).items()} for f in files]


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("parallel", [True, False])
def test_ranks_compute_what_one_does_only_with_biases_by_the_rule_of_their_residual(parallel, n, tmp_path):
    spec = tiny_spec("gpt_neox", residual="parallel" if parallel else "sequential")
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(a.shape).astype(np.float32) / 8 for name, a in tiny_weights(spec).items()}
    for folder in ("one", "many"):
        (tmp_path / folder).mkdir()
    one, many = (block_of(tmp_path / f, arrays, spec, k) for f, k in (("one", 1), ("many", n)))
    x = rng.standard_normal((5, 64))
    truth = block(x, one, parallel)
    assert np.abs(block(x, many, parallel) - truth).max() < 1e-12  # the same sums in float64, in another order
    with open_state(tmp_path / "many") as seen:
        assert (read_all(canonical(seen), "blocks.0.attn.out.bias") == arrays["blocks.0.attn.out.bias"]).all()
    # GPT-NeoX's converters, whatever the residual: each rank gets bias / n (convert_hf_to_sequential), and the ranks' biases are
    # summed on the way back (convert_neox_to_hf).
    biases = ("attention.dense.bias", "mlp.dense_4h_to_h.bias")
    theirs = [r | {name: one[0][name] / n for name in biases} for r in many]
    error = np.abs(block(x, theirs, parallel) - truth).max()
    summed = sum(r[biases[0]] for r in many)
    right = np.array_equal(summed, one[0][biases[0]])
    assert (error < 1e-12, right) == (parallel, parallel)
    if not parallel:
        assert error > 0.1
        assert np.array_equal(summed, n * one[0][biases[0]])


@given(st.data())
def test_cutting_over_ranks_and_merging_again_is_the_identity(data):
    n, k, width = (data.draw(st.integers(1, 4)) for _ in range(3))
    rule, shares = data.draw(
        st.sampled_from([("column", ()), ("row", ()), ("replica", ()), ("parts", (1, 1)), ("parts", (2, 1, 1))])
    )
    shape = (width, n * k) if rule == "row" else (n * k * max(1, sum(shares)), width)
    whole = ArraysView({"w": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)})
    names = [f"part {rank}" for rank in range(n)]
    parts = RewiredView(whole, dict(zip(names, split(whole.info("w"), rule, n, names, shares))))
    stored = ArraysView({name: read_all(parts, name) for name in names})
    again = merged("w", {k: stored.info(name) for k, name in enumerate(names)}, rule, sum_biases=False, shares=shares)
    assert (read_all(RewiredView(stored, {"w": again}), "w") == read_all(whole, "w")).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_pieces_of_a_flat_group_are_its_elements_in_order_and_then_zeros(sizes, n):
    sources = United({"": ArraysView({str(k): np.zeros(size, np.float32) for k, size in enumerate(sizes)})})
    flat = Flat.of(sources, sources.names())
    pieces = [flat.piece(k, n, padded=True) for k in range(n)]
    seen = [(run.tensor, i) for piece in pieces for run in piece.runs for i in range(run.start, run.stop)]
    assert seen == [(str(k), i) for k, size in enumerate(sizes) for i in range(size)]
    assert len({piece.numel for piece in pieces}) == 1
    assert sum(flat.padding(k, n) for k in range(n)) == n * pieces[0].numel - sum(sizes)


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


@pytest.mark.parametrize("kind", ["float64", "float8_e4m3fn"])
def test_weights_in_a_precision_that_neox_has_not_are_refused(kind):
    spec = tiny_spec("gpt_neox")
    storage = np.float64 if kind == "float64" else np.uint8
    arrays = {name: np.zeros(a.shape, storage) for name, a in tiny_weights(spec).items()}
    view = ArraysView(arrays, dtypes=dict.fromkeys(arrays, kind))
    with pytest.raises(PretraceError, match=kind):
        layout_of("neox", view, spec, plain_options(view))
