"""The compiled kernels and their numpy specification: the same bits for any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.compare import plain
from pretrace.compare.ir import FORMATS
from pretrace.compare.kernels import CompiledKernels, PlainKernels, kernels

STORAGE = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32, "float64": np.float64}


def random_bits(rng, n, dtype):
    """Any bit pattern: NaNs, infinities, subnormals and both zeros among them."""
    return rng.integers(0, 256, n * np.dtype(STORAGE[dtype]).itemsize, dtype=np.uint8).view(STORAGE[dtype])


def partly_equal(rng, n, dtype):
    a, b = random_bits(rng, n, dtype), random_bits(rng, n, dtype)
    return a, np.where(rng.random(n) < 0.5, a, b)


@pytest.mark.parametrize("dtype", FORMATS)
@settings(max_examples=25, deadline=None)
@given(n=st.one_of(st.integers(1, 70), st.sampled_from([65_535, 65_536, 65_537, 131_089])), seed=st.integers(0, 2**32))
def test_compiled_and_plain_kernels_give_the_same_bits(dtype, n, seed):
    rng = np.random.default_rng(seed)
    (a, b), c = partly_equal(rng, n, dtype), random_bits(rng, n, dtype)
    fast, slow = CompiledKernels(dtype), PlainKernels(dtype)
    for got, want in ((fast.pair(a, b), slow.pair(a, b)), (fast.single(a), slow.single(a))):
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(fast.triple(a, b, c), slow.triple(a, b, c))


@pytest.mark.parametrize("dtype", FORMATS)
def test_fused_multiply_add_changes_no_bit(dtype):
    rng = np.random.default_rng(2)
    (a, b), c = partly_equal(rng, 200_003, dtype), random_bits(rng, 200_003, dtype)
    fused, apart = CompiledKernels(dtype), CompiledKernels(dtype, fused=False)
    np.testing.assert_array_equal(fused.pair(a, b)[0], apart.pair(a, b)[0])
    np.testing.assert_array_equal(fused.triple(a, b, c), apart.triple(a, b, c))
    np.testing.assert_array_equal(fused.single(a)[0], apart.single(a)[0])


def test_a_pair_by_hand():
    a = np.array([1.0, 2.0, 0.0, 4.0], np.float32)
    b = np.array([1.0, 2.5, -0.0, 4.0], np.float32)
    sums, counts = plain.pair(a, b, "float32")
    assert sums.tolist() == [21.0, 23.25, 22.0, 0.25, 0.5]
    # Equal bits: 1.0 and 4.0. Zeros of both signs are 0 steps apart; 2.0 and 2.5 are 2^21 steps apart.
    assert counts.tolist() == [2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]


def test_neighbours_are_one_step_apart_also_across_zero():
    tiny = np.float32(1e-45)
    a, b = np.array([1.0, -tiny], np.float32), np.array([np.nextafter(np.float32(1), np.float32(2)), tiny], np.float32)
    above = plain.pair(a, b, "float32")[1][3:]
    assert above.tolist() == [2, 1, 0, 0, 0, 0, 0, 0]  # one pair 1 step apart, one 2 steps


def test_a_single_array_by_hand():
    sums, counts = plain.single(np.array([0.0, -0.0, 3.0, -5.0, np.nan], np.float16), "float16")
    assert np.isnan(sums[:2]).all()
    assert sums[2:].tolist() == [5.0, -5.0, 3.0]
    assert counts.tolist() == [2, 1, 0]


def test_nan_equal_in_bits_is_counted_as_equal_and_as_not_finite():
    nan = np.array([0x7FC0], np.uint16)
    assert plain.pair(nan, nan, "bfloat16")[1][:3].tolist() == [1, 1, 1]


def test_folding_adds_by_halves():
    lanes = np.arange(16.0)
    assert plain.fold(lanes) == 120.0


def test_without_a_compiler_the_plain_kernels_are_used(monkeypatch):
    monkeypatch.setattr("pretrace.compare.kernels._compile", lambda *_: (_ for _ in ()).throw(OSError("no")))
    monkeypatch.setattr("pretrace.compare.kernels._made", {})
    assert not kernels("float32", "pair", compiled=True).compiled
