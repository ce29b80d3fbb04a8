import numpy as np
import pytest

from pretrace.errors import PretraceError
from pretrace.evaluate.intervals import Ratio, mean
from pretrace.evaluate.paired import mcnemar, paired, paired_plain


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


def test_no_finite_number_of_draws_gives_a_p_of_zero():
    found = paired(mean([1.0] * 50), mean([0.0] * 50))
    assert 0 < found.p < 0.002
    assert found.distinguishable


@pytest.mark.parametrize(("first", "second", "p"), [(0, 0, 1.0), (5, 0, 2 / 32), (3, 9, 598 / 4096), (4, 4, 1.0)])
def test_of_shares_the_p_is_the_exact_binomial_one(first, second, p):  # 598 = 2 (1 + 12 + 66 + 220)
    a, b = np.zeros(200), np.zeros(200)
    a[:first], b[first : first + second] = 1, 1
    assert mcnemar(a, b) == pytest.approx(p, rel=1e-12)


def test_five_rows_against_none_do_not_tell_two_models_apart():
    a = mean([1.0] * 5 + [0.0] * 995)  # no resample crosses zero, but a coin falls five times alike 1 in 16 times
    found = paired(a, mean([0.0] * 1000))
    assert found.p == 0.0625
    assert not found.distinguishable


def test_three_texts_rarely_tell_equal_models_apart():
    rng = np.random.default_rng(6)
    alarms = sum(paired(mean(rng.normal(size=3)), mean(rng.normal(size=3)), 300).distinguishable for _ in range(200))
    assert alarms <= 20  # plain percentiles: 24% of the times
