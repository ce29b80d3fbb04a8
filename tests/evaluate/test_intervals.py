import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.evaluate.intervals import (
    Ratio,
    identity,
    interval,
    intervals,
    mean,
    mean_stderr,
    proportion,
    spread,
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


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=60))
def test_the_value_lies_in_its_interval(values):
    found = proportion(values)
    assert found.low - 1e-12 <= found.value <= found.high + 1e-12


def test_one_document_cannot_say_how_sure_it_is():
    found = interval(mean([2.0]))
    assert found.value == 2.0
    assert math.isnan(found.low)


def test_few_documents_are_less_sure_than_their_resamples_look():
    # 3 documents with losses of 3 +- 0.2: plain percentiles hold e^3 76% of the times
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        losses = rng.normal(3, 0.2, 3)
        held += interval(Ratio(losses, np.ones(3), np.exp), 300).holds(np.exp(3))
    assert 180 <= held <= 198  # 95% expected: 190; outside of this has a chance below 0.3%


@pytest.mark.parametrize(
    ("n", "student"), [(2, 12.7062), (3, 4.3027), (4, 3.1824), (5, 2.7764), (10, 2.2622), (30, 2.0452)]
)
def test_the_spread_is_student_s(n, student):  # 97.5% quantiles as tables print them
    assert spread(n) == pytest.approx(student / 1.959964 * math.sqrt(n / (n - 1)), rel=2e-3)
