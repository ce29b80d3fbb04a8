"""The arithmetic of a comparison."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.compare.kernels import PlainKernels
from pretrace.compare.result import difference, of_blocks, one_minus_cos, together


def sums_of(a, b):
    block, counts = PlainKernels("float64").pair(np.array(a, float), np.array(b, float))
    return of_blocks(len(a), block, counts.sum(axis=0), None, True)


def test_a_pair_by_hand():
    d = difference(sums_of([3.0, 4.0], [4.0, 3.0]))
    assert (d.p_cos, d.l2, d.rel_l2, d.max_abs) == (0.96, math.sqrt(2), math.sqrt(2) / 5, 1.0)
    assert (d.unequal, d.bitwise_equal) == (2, 0.0)


def test_two_near_vectors_keep_their_small_distance():
    # a = (1, 0), b = (1, 1e-9): 1 - cos = 5e-19, far below the spacing of float64 at 1.
    d = difference(sums_of([1.0, 0.0], [1.0, 1e-9]))
    assert d.one_minus_p_cos == pytest.approx(5e-19, rel=1e-6)
    assert d.p_cos == 1.0


def test_opposite_and_orthogonal_vectors():
    assert difference(sums_of([1.0, 2.0], [-1.0, -2.0])).p_cos == -1.0
    assert difference(sums_of([1.0, 0.0], [0.0, 1.0])).p_cos == 0.0


def test_a_zero_vector_has_no_direction_but_equals_itself():
    assert math.isnan(difference(sums_of([0.0], [1.0])).p_cos)
    assert difference(sums_of([0.0], [-0.0])).p_cos == 1.0


def test_the_share_of_equal_bits_is_one_only_if_all_are_equal():
    a = np.ones(1_000_003)
    b = a.copy()
    b[7] = np.nextafter(1.0, 2.0)
    d = difference(sums_of(a, b))
    assert d.unequal == 1
    assert d.bitwise_equal < 1.0


def test_the_histogram_counts_every_element_once():
    d = difference(sums_of([1.0, 1.0, 2.0], [1.0, np.nextafter(1.0, 2.0), 4.0]))
    assert d.ulp["0"] == 1
    assert d.ulp["1"] == 1
    assert d.ulp[">4096"] == 1
    assert sum(d.ulp.values()) == 3


numbers = st.integers(-1000, 1000)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=60))
def test_cosine_agrees_with_exact_arithmetic(pairs):
    aa, bb, ab = (Fraction(sum(x * y for x, y in items)) for items in (
        [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs], pairs))  # fmt: skip
    got = one_minus_cos(float(aa), float(bb), float(ab), float(aa + bb - 2 * ab))
    if aa == 0 or bb == 0:
        assert math.isnan(got) or aa == bb == 0
    else:
        assert got == pytest.approx(1 - float(ab) / math.sqrt(float(aa) * float(bb)), abs=1e-14)


@given(st.permutations(range(6)))
def test_totals_do_not_depend_on_the_order_of_the_tensors(order):
    rng = np.random.default_rng(3)
    parts = [sums_of(rng.normal(size=50) * 10.0**k, rng.normal(size=50)) for k in range(6)]
    assert together(parts[i] for i in order) == together(parts)
