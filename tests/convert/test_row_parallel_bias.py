"""Row-parallel biases of GPT-NeoX at two tensor-parallel ranks, computed in both forms: which rule a merge has to follow.

What a rank computes is written out from gpt-neox ea7aefd8: RowParallelLinear.forward (megatron/mpu/layers.py) returns the
partial product and the bias apart; ParallelTransformerLayer.forward (megatron/model/transformer.py) adds the bias to each
rank's part before one all-reduce with gpt_j_residual, and after the all-reduce without it. So the true bias is the sum of the
ranks' biases in the first form, and one of them in the second. Both published converters sum (and divide) in either form.
"""

import numpy as np
import pytest
import torch

from convert_lab import request, settings, weights
from pretrace.checkpoint import ArraysView, canonical, open_state, write_hf
from pretrace.convert.run import convert
from pretrace.convert.second import second_logits
from pretrace.convert.second.arithmetic import activation, attention, layer_norm, rotary_half
from pretrace.model.presets import gpt_neox
from pretrace.model.spec import ModelSpec

SIZES = {"vocab_size": 24, "max_seq_len": 12, "n_layers": 2, "d_model": 32, "n_heads": 4}
PARALLEL = gpt_neox(**SIZES)
SEQUENTIAL = ModelSpec(**{**PARALLEL.model_dump(), "residual": "sequential"})
FORMS = {"with gpt_j_residual": PARALLEL, "without": SEQUENTIAL}
TOKENS = np.random.default_rng(1).integers(0, 24, (2, 12))
ROW_BIASES = ("attention.dense.bias", "mlp.dense_4h_to_h.bias")


def files(folder, layer):
    return [next(folder.rglob(f"layer_{layer:02d}-model_{rank:02d}-model_states.pt")) for rank in (0, 1)]


def ranks(folder, layer):
    """The layer's tensors on each rank, float64."""
    return [{k: v.double().numpy() for k, v in torch.load(f, weights_only=True).items()} for f in files(folder, layer)]


def attend(p, x, spec):
    """One rank's heads; its part of the output projection, without a bias."""
    b, t, _ = x.shape
    fused = (x @ p["attention.query_key_value.weight"].T + p["attention.query_key_value.bias"]).reshape(
        b, t, -1, 3, spec.head_dim
    )
    q, k, v = (fused[:, :, :, i] for i in range(3))
    q, k = (rotary_half(a, spec.rotary_lanes, spec.rotary_base) for a in (q, k))
    return attention(q, k, v, spec.head_dim**-0.5) @ p["attention.dense.weight"].T


def feed(p, x, spec):
    wide = activation(x @ p["mlp.dense_h_to_4h.weight"].T + p["mlp.dense_h_to_4h.bias"], spec.activation)
    return wide @ p["mlp.dense_4h_to_h.weight"].T


def norm(p, name, x, spec):
    return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], spec.norm_eps)


def block(parts, x, spec):
    if spec.residual == "parallel":
        # Each rank adds its own biases, then one all-reduce.
        return x + sum(
            attend(p, norm(p, "input_layernorm", x, spec), spec) + p["attention.dense.bias"]
            + feed(p, norm(p, "post_attention_layernorm", x, spec), spec) + p["mlp.dense_4h_to_h.bias"]
            for p in parts
        )  # fmt: skip
    # The all-reduce is inside of the linear; every rank then adds its copy of the bias to the same sum.
    first = parts[0]
    x = x + sum(attend(p, norm(p, "input_layernorm", x, spec), spec) for p in parts) + first["attention.dense.bias"]
    return (
        x
        + sum(feed(p, norm(p, "post_attention_layernorm", x, spec), spec) for p in parts)
        + first["mlp.dense_4h_to_h.bias"]
    )


def two_rank_logits(folder, spec):
    table = np.concatenate([p["word_embeddings.weight"] for p in ranks(folder, 0)])
    x = table[TOKENS]
    for i in range(spec.n_layers):
        x = block(ranks(folder, i + 2), x, spec)
    last = ranks(folder, spec.n_layers + 3)[0]
    head = np.concatenate([p["final_linear.weight"] for p in ranks(folder, spec.n_layers + 4)])
    return layer_norm(x, last["norm.weight"], last["norm.bias"], spec.norm_eps) @ head.T


@pytest.fixture
def made(tmp_path):
    def make(spec):
        source = tmp_path / "hf"
        source.mkdir()
        write_hf(source, ArraysView(weights(spec)), spec)
        convert(
            str(source), tmp_path / "neox", request("neox", tensor_parallel=2, linear1=False), settings(logits=False)
        )
        with open_state(source) as view:
            return tmp_path / "neox", second_logits(view, spec, TOKENS)

    return make


def far(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_compute_what_the_whole_model_computes(form, made):
    folder, wanted = made(FORMS[form])
    assert far(two_rank_logits(folder, FORMS[form]), wanted) < 1e-12


def test_with_gpt_j_residual_only_the_sum_of_the_biases_counts_and_our_merge_takes_it(made, tmp_path):
    folder, wanted = made(PARALLEL)
    shift = torch.from_numpy(np.random.default_rng(3).integers(-64, 64, 32) / 256).float()
    for layer in (2, 3):
        for sign, file in zip((1, -1), files(folder, layer), strict=True):
            parts = torch.load(file, weights_only=True)
            for name in ROW_BIASES:
                parts[name] = parts[name] + sign * shift
            torch.save(parts, file)
    assert far(two_rank_logits(folder, PARALLEL), wanted) < 1e-6  # the sums were rounded to float32
    (folder / "conversion.json").unlink()
    convert(str(folder), tmp_path / "back", request("hf"), settings())
    with open_state(tmp_path / "back") as view:
        assert far(second_logits(view, PARALLEL, TOKENS), wanted) < 1e-6


def test_without_it_every_rank_holds_the_bias_and_a_merge_that_sums_is_wrong(made, tmp_path):
    folder, wanted = made(SEQUENTIAL)
    for name in ROW_BIASES:
        one, other = (p[name] for p in ranks(folder, 2))
        assert (one == other).all()
    convert(str(folder), tmp_path / "back", request("hf"), settings())
    with open_state(tmp_path / "back") as view:
        assert far(second_logits(view, SEQUENTIAL, TOKENS), wanted) < 1e-12
        ours = canonical(view)
        summed = {n: ours.read(n, 0, ours.info(n).numel).reshape(ours.info(n).shape) for n in ours.names()}
    for name in [n for n in summed if n.endswith(("attn.out.bias", "mlp.down.bias"))]:
        summed[name] = 2 * summed[name]  # what convert_neox_to_hf makes of two replicas
    (tmp_path / "summed").mkdir()
    write_hf(tmp_path / "summed", ArraysView(summed), SEQUENTIAL)
    with open_state(tmp_path / "summed") as view:
        assert far(second_logits(view, SEQUENTIAL, TOKENS), wanted) > 0.05
