import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.step.exact import BLOCK, ExactSum, vanished


def exact(parts, exponent=56, divisor=1.0):
    total = ExactSum(torch.zeros(parts[0].numel(), dtype=torch.int64), exponent, len(parts))
    for part in parts:
        total.add(part)
    return total.value(divisor, torch.float32)


@given(data=st.data(), n=st.integers(1, 12))
def test_any_order_gives_the_same_bits(data, n):
    parts = [torch.randn(50, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i % 5 - 4) for i in range(n)]
    shuffled = [parts[i] for i in data.draw(st.permutations(range(n)))]
    assert torch.equal(exact(parts), exact(shuffled))


def test_one_third_counts_as_the_nearest_whole_number_of_quanta():
    third = torch.tensor([1 / 3])
    assert exact([third], exponent=4).item() == 5 / 16  # 16 / 3 = 5.33
    assert exact([third] * 3, exponent=4).item() == 15 / 16


def test_the_sum_is_closer_to_fp64_than_fp32_addition_is():
    rng = np.random.default_rng(0)
    parts = [
        torch.from_numpy((rng.standard_normal(20_000) * 10.0 ** rng.uniform(-6, -2, 20_000)).astype(np.float32))
        for _ in range(6)
    ]
    truth = sum(part.double() for part in parts)
    added = parts[0].clone()
    for part in parts[1:]:
        added += part
    off, plain_off = ((v.double() - truth).norm() / truth.norm() for v in (exact(parts), added))
    assert off < plain_off
    assert off < 2**-24  # what is left is the last rounding to float32: at most half of 2^-23 an element


def test_what_might_leave_64_bits_is_refused_before_it_wraps():
    with pytest.raises(PretraceError, match="beyond the range") as error:
        exact([torch.tensor([40.0]), torch.tensor([100.0])])  # 2 terms: each below 2^7 / 2
    assert "lower the exponent" in error.value.mend


def test_the_largest_allowed_terms_do_not_wrap():
    parts = [torch.full((3,), -63.9) for _ in range(2)]
    assert exact(parts).tolist() == pytest.approx([-127.8] * 3)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_makes_the_sum_void(odd):
    parts = [torch.ones(2 * BLOCK + 3) for _ in range(2)]
    parts[1][BLOCK + 5] = odd
    assert torch.isnan(exact(parts)).all()


def test_gradients_below_half_a_quantum_vanish_and_are_counted():
    flat = torch.tensor([0.0, 2.0**-60, -(2.0**-57), 2.0**-56, 1.0])
    assert vanished(flat, 56) == 2
    assert exact([flat]).tolist() == [0.0, 0.0, 0.0, 2.0**-56, 1.0]


def test_the_divisor_acts_once_in_double():
    assert exact([torch.tensor([1.0]), torch.tensor([2.0])], divisor=7.0).item() == np.float32(3 / 7)
