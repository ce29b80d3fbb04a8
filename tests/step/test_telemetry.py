"""Statistics of the logits add up over micro-batches and see what the loss cannot."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.step.telemetry import LogitSums, head_leak, logit_sums, norm, update_norm


def test_the_figures_are_what_their_names_say():
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-9.0, 9.0, 9.0]])
    stats = logit_sums(logits, torch.tensor([2, 0, -100])).stats
    assert stats.mean == 1.0  # (1 + 2 + 3 + 0 + 0 + 0) / 6; the ignored row is left out
    assert stats.rms == pytest.approx(math.sqrt(14 / 6))
    assert stats.max == 3.0
    assert stats.lse == pytest.approx((3.407606 + math.log(3)) / 2, abs=1e-6)


def test_a_constant_on_all_logits_moves_lse_one_to_one_and_the_loss_not():
    logits, labels = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    loss = torch.nn.functional.cross_entropy
    assert loss(logits + 100, labels).item() == pytest.approx(loss(logits, labels).item(), abs=1e-5)
    moved = logit_sums(logits + 100, labels).stats.lse - logit_sums(logits, labels).stats.lse
    assert moved == pytest.approx(100, abs=1e-4)


@given(cut=st.integers(0, 12), bf16=st.booleans())
def test_sums_do_not_depend_on_how_positions_are_cut(cut, bf16):
    logits = torch.randn(12, 7, generator=torch.Generator().manual_seed(1)).to(
        torch.bfloat16 if bf16 else torch.float32
    )
    labels = torch.arange(12) % 7 - 100 * (torch.arange(12) == 3)
    labels[3] = -100
    whole = logit_sums(logits, labels).stats
    parts = (logit_sums(logits[:cut], labels[:cut]) + logit_sums(logits[cut:], labels[cut:])).stats
    assert parts.max == whole.max
    for name in ("mean", "rms", "lse"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-6, abs=1e-7)


def test_nothing_counted_has_no_figures():
    assert logit_sums(torch.zeros(3, 4), torch.full((3,), -100)) == LogitSums()
    assert LogitSums().stats is None


def test_a_nan_in_one_micro_batch_reaches_the_maximum():
    bad = logit_sums(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]))
    good = logit_sums(torch.tensor([[5.0, 1.0]]), torch.tensor([0]))
    assert math.isnan((bad + good).max)
    assert math.isnan((good + bad).max)


def test_norms():
    assert norm([torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.bfloat16)]) == 5.0
    assert update_norm([torch.zeros(2)], [torch.tensor([3.0, 4.0])]) == 5.0


def test_the_exact_head_gradient_does_not_leak_and_a_rounded_one_does():
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    hidden = torch.randn(64, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    residual = logits.softmax(-1)
    residual[torch.arange(64), torch.arange(64)] -= 1
    gradient = residual.T @ hidden
    assert head_leak(gradient) < 1e-15
    assert head_leak(gradient.bfloat16()) > 1e-4
    assert head_leak(torch.zeros(3, 2)) == 0.0
