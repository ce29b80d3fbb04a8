import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.evaluate.intervals import (
    Ratio,
    identity,
    interval,
    intervals,
    mean,
    mean_stderr,
    paired,
    paired_plain,
    proportion,
)


def test_a_hundred_rows_of_hellaswag_have_a_standard_error_of_4_6_points():
    found = proportion([1.0] * 29 + [0.0] * 71)
    assert round(100 * found.stderr, 1) == 4.6
    assert (round(100 * found.low), round(100 * found.high)) == (21, 39)


def test_the_standard_error_is_the_harness_s():
    # sample standard deviation (n - 1) over the root of n: [0, 1] has sd sqrt(1/2), over sqrt(2) = 1/2
    assert mean_stderr([0.0, 1.0]) == pytest.approx(0.5)
    assert math.isnan(mean_stderr([1.0]))


def test_a_share_of_none_still_has_an_interval():
    found = proportion([0.0] * 20)
    assert found.stderr == 0
    assert found.low == 0
    assert 0.1 < found.high < 0.2


def test_the_bootstrap_of_a_mean_agrees_with_the_formula():
    x = np.random.default_rng(0).normal(3, 1, 400)
    found = interval(mean(x))
    assert found.stderr == pytest.approx(mean_stderr(x), rel=0.1)
    assert found.low < 3 < found.high


def test_several_ratios_are_drawn_together():
    rng = np.random.default_rng(1)
    ratios = [
        Ratio(rng.exponential(size=30), rng.integers(1, 9, 30).astype(float), shape) for shape in (identity, np.exp)
    ]
    together = intervals(ratios)
    for alone, one in zip(ratios, together, strict=True):
        found = interval(alone)
        assert (one.low, one.high) == pytest.approx((found.low, found.high), rel=1e-12)


def test_the_fast_paired_bootstrap_is_the_plain_one():
    rng = np.random.default_rng(2)
    below = rng.integers(1, 9, 12).astype(float)
    a, b = Ratio(rng.exponential(size=12), below, np.exp), Ratio(rng.exponential(size=12), below, np.exp)
    fast, plain = paired(a, b, 50, 7).difference, paired_plain(a, b, 50, 7)
    assert (fast.value, fast.low, fast.high) == pytest.approx((plain.value, plain.low, plain.high), rel=1e-12)


def test_pairing_finds_what_two_standard_errors_hide():
    hard = np.random.default_rng(3).normal(0, 10, 300)  # what both models find hard
    a, b = mean(hard + 0.5), mean(hard + np.random.default_rng(4).normal(0, 1, 300))
    found = paired(a, b)
    assert found.distinguishable
    assert abs(found.difference.value) < found.a.stderr + found.b.stderr


def test_equal_models_are_not_distinguishable():
    right = [float(i % 3 == 0) for i in range(100)]
    found = paired(mean(right), mean(right))
    assert not found.distinguishable
    assert found.p == 1.0
    assert found.difference.value == 0


def test_the_false_alarm_rate_of_the_paired_bootstrap_is_near_its_level():
    rng = np.random.default_rng(5)
    alarms = sum(paired(mean(rng.normal(size=60)), mean(rng.normal(size=60)), 300).distinguishable for _ in range(200))
    assert alarms <= 20  # 5% expected: 10 of 200; 20 or more has a chance below 0.3%


def test_other_rows_cannot_be_paired():
    with pytest.raises(PretraceError, match="3 against 2 documents"):
        paired(mean([1.0, 0.0, 1.0]), mean([1.0, 0.0]))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=60))
def test_the_value_lies_in_its_interval(values):
    found = proportion(values)
    assert found.low - 1e-12 <= found.value <= found.high + 1e-12


def test_no_finite_number_of_draws_gives_a_p_of_zero():
    found = paired(mean([1.0] * 50), mean([0.0] * 50))
    assert 0 < found.p < 0.002
    assert found.distinguishable


def test_one_document_cannot_say_how_sure_it_is():
    found = interval(mean([2.0]))
    assert found.value == 2.0
    assert math.isnan(found.low)
