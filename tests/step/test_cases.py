"""Public reports on losses, ranks and number formats, each as a small case named after its thread."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tiny
from pretrace.batch import Batch
from pretrace.model.decoder import rotary_table
from pretrace.model.presets import gpt_neox
from pretrace.step.denominators import counts_of, sequence_counts, weigh
from pretrace.step.exact import ExactSum
from pretrace.step.execute import gradient
from pretrace.step.loss_spec import LossSpec
from pretrace.step.orders import GlooRing, paths
from pretrace.step.reduce import fold_all
from pretrace.step.state import begin
from pretrace.step.telemetry import head_leak

SPEC = {"count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0, "z_loss_on": "counted"}


def label_weights(denominator, *lengths):
    """What one label weighs in the update; `lengths` [R, K, B] counts labels of sequences of 8."""
    n = np.array(lengths, dtype=np.int64)
    spec = LossSpec(denominator=denominator, **SPEC)
    found = counts_of(spec, np.stack([n, np.zeros_like(n)], -1), 8 * n.size)
    return weigh(spec, found, mean=True).token / n.shape[0]


def test_transformers_37766_the_mean_of_means_weighs_a_lone_label_like_seven():
    """Four sequences with 7, 2, 5 and 1 labels: in one batch, and as four micro-steps."""
    one_batch, four_steps = [[[7, 2, 5, 1]]], [[[7], [2], [5], [1]]]
    assert label_weights("micro_mean", *one_batch).ravel() == pytest.approx([1 / 15] * 4)
    assert label_weights("micro_mean", *four_steps).ravel() == pytest.approx([1 / 28, 1 / 8, 1 / 20, 1 / 4])
    assert label_weights("global_tokens", *four_steps).ravel() == pytest.approx([1 / 15] * 4)


def test_torchtitan_1842_a_rank_with_two_labels_does_not_weigh_like_one_with_ten():
    assert label_weights("rank_step_tokens", [[10]], [[2]]).ravel() == pytest.approx([1 / 20, 1 / 4])
    assert label_weights("global_tokens", [[10]], [[2]]).ravel() == pytest.approx([1 / 12, 1 / 12])


def test_gpt_neox_905_partial_sums_over_the_hidden_dimension_are_not_halves_of_the_vocabulary():
    """Logits [4, 8] of two ranks: W split over its inputs gives partial sums, which only look like shards of twice the size."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((4, 16), (8, 16)))
    labels = torch.tensor([1, 6, 3, 0])
    right = F.cross_entropy(hidden @ weight.T, labels)
    by_inputs = [hidden[:, half] @ weight[:, half].T for half in (slice(0, 8), slice(8, 16))]  # [4, 8] each
    by_rows = [hidden @ weight[half].T for half in (slice(0, 4), slice(4, 8))]  # [4, 4] each
    assert F.cross_entropy(sum(by_inputs), labels) == pytest.approx(right)
    assert F.cross_entropy(torch.cat(by_rows, 1), labels) == pytest.approx(right)
    # The fault: partial sums of one rank, or both side by side, taken for the vocabulary. Shapes fit, labels are in range.
    assert abs(float(F.cross_entropy(torch.cat(by_inputs, 1), labels) - right)) > 0.5
    assert abs(float(F.cross_entropy(by_inputs[0], labels) - right)) > 0.5


def test_gpt_neox_905_the_first_loss_of_a_fresh_model_shows_a_vocabulary_of_another_size():
    """An untrained model that treats all V rows alike has a loss of log V; taken for 2 V rows it has log 2 V."""
    logits, labels = torch.zeros(4, 8), torch.tensor([1, 6, 3, 0])
    assert F.cross_entropy(logits, labels) == pytest.approx(np.log(8))
    assert F.cross_entropy(torch.cat([logits, logits], 1), labels) == pytest.approx(np.log(16))


def ring_error(world_size, dtype, numel=256):
    """Relative L2 error of a gloo ring over noisy gradients with a common part."""
    draw = torch.Generator().manual_seed(world_size)
    flats = [(torch.randn(numel, generator=draw) + 3).to(dtype) for _ in range(world_size)]
    order = GlooRing(kind="gloo_ring", sum_dtype="wire", max_segment_bytes=1 << 20)
    found = fold_all(flats, paths(order, numel, flats[0].element_size(), world_size, "all_reduce")).double()
    exact = sum(f.double() for f in flats)
    return float((found - exact).norm() / exact.norm())


def test_olmo_514_the_error_of_a_bfloat16_ring_grows_with_the_ranks_and_that_of_float32_does_not_show():
    narrow = [ring_error(world_size, torch.bfloat16) for world_size in (4, 16, 128, 512)]
    assert narrow == sorted(narrow)
    assert narrow[0] < 5e-3
    assert narrow[-1] > 0.1
    assert all(ring_error(world_size, torch.float32) < 1e-6 for world_size in (4, 16, 128, 512))


def test_olmo_514_the_loss_does_not_see_what_the_reduction_leaks_into_the_mean_logit():
    leaks = {}
    for dtype in ("float32", "bfloat16"):
        plan = tiny.plan(world_size=64, micro_batch=1, reduce_dtype=dtype)
        state = begin(plan, tiny.gpt())
        leaks[dtype] = head_leak(gradient(plan, state, tiny.read, step=0).by_name(state)["head.weight"])
    assert leaks["float32"] < 1e-6
    assert leaks["bfloat16"] > 1e-3


@pytest.mark.parametrize(("dtype", "arrived"), [("float32", 1.0), ("bfloat16", 0.0)])
def test_deepspeed_2768_a_bfloat16_accumulator_stalls_over_256_small_gradients_of_one_sign(dtype, arrived):
    """Added to 1.0, 1/512 is less than half a step of bfloat16 (1/256): none of the 256 arrives."""
    total = torch.tensor([1.0], dtype=getattr(torch, dtype))
    for _ in range(256):
        torch._foreach_add_([total], [torch.tensor([1 / 512])])  # as ranks accumulate: evaluate.Player
    assert (total.item() - 1) / (256 / 512) == arrived


def test_deepspeed_2768_the_plan_says_in_which_dtype_micro_batches_are_added():
    norms = {}
    for dtype in ("float32", "bfloat16"):
        plan = tiny.plan(world_size=1, grad_accum_steps=32, micro_batch=1, accum_dtype=dtype)
        state = begin(plan, tiny.gpt())
        norms[dtype] = gradient(plan, state, tiny.read, step=0).reduced.total.double()
    error = (norms["bfloat16"] - norms["float32"]).norm() / norms["float32"].norm()
    assert 1e-3 < error < 0.1


def test_transformers_29285_rotary_angles_are_float32_in_a_model_that_was_cast_to_bfloat16():
    """Positions above 256 cannot all be told apart in bfloat16; frequencies rounded to it drift with the position."""
    spec = gpt_neox(vocab_size=16, max_seq_len=4096, n_layers=1, d_model=64, n_heads=1)
    positions = torch.arange(4096)
    cos, sin = rotary_table(spec, positions)
    assert cos.dtype == torch.float32
    inverse = spec.rotary_base ** -(torch.arange(0, spec.rotary_lanes, 2).double() / spec.rotary_lanes)
    exact = torch.outer(positions.double(), inverse)
    assert float((cos[:, : len(inverse)] - exact.cos()).abs().max()) < 5e-4  # half an ulp of an angle of 4,095
    narrow = torch.outer(positions.bfloat16(), inverse.bfloat16()).float().cos()
    assert float((narrow - exact.cos()).abs().max()) > 1
    assert len(set(positions.bfloat16().tolist())) < 1500
    assert float((sin[:, : len(inverse)] - exact.sin()).abs().max()) < 5e-4


def test_maxtext_2353_a_weight_of_the_z_loss_reaches_the_loss_and_is_logged_apart():
    """Three rows whose log-sum-exp is 12: 1e-4 * 144 each, beside the cross entropy."""
    from pretrace.step.loss import backward

    logits = torch.full((1, 3, 4), 12.0 - float(np.log(4)), requires_grad=True)
    batch = Batch(np.zeros((1, 3), dtype=np.int64), np.zeros((1, 3), dtype=np.int64))
    assert sequence_counts(batch)[0, 0] == 3
    for weight in (0.0, 1e-4):
        spec = LossSpec(denominator="global_tokens", **{**SPEC, "z_loss": weight})
        found = backward(lambda tokens: logits, batch, np.ones(1, dtype=np.float32), spec, torch.device("cpu"))
        assert found.losses[0] == pytest.approx(3 * np.log(4), rel=1e-6)
        assert found.z_losses[0] == pytest.approx(3 * weight * 144, rel=1e-6)


def test_flash_attention_384_an_order_that_is_not_fixed_moves_two_steps_of_descent_and_exact_addition_does_not():
    """1,000 float32 numbers in five orders, as a backward with atomics adds them; the sum is the gradient of two steps."""
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    orders = [np.random.default_rng(k).permutation(1000) for k in range(5)]
    ends = {"as it comes": set(), "exact": set()}
    for order in orders:
        exact = ExactSum(torch.zeros(1, dtype=torch.int64), 40, 1000)
        for number in numbers[order]:
            exact.add(torch.tensor([number]))
        for kind, total in (
            ("as it comes", np.cumsum(numbers[order])[-1]),
            ("exact", exact.value(1.0, torch.float32).item()),
        ):
            ends[kind].add(float(np.float32(1) - np.float32(0.1) * total - np.float32(0.1) * total))
    assert len(ends["exact"]) == 1
    assert len(ends["as it comes"]) > 1
    assert max(ends["as it comes"]) - min(ends["as it comes"]) < 1e-4
