import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pretrace.provenance.tails import clopper_pearson, incomplete_beta, rank_p, t_quantile, t_upper_tail


def test_first_of_twenty_has_p_one_in_twenty():
    assert rank_p(0.9, np.zeros(19)) == 0.05


def test_a_tie_counts_against_the_score():
    assert rank_p(0.5, [0.5, 0.1, 0.2]) == 0.5


@given(t=st.floats(-50, 50), dof=st.integers(1, 200))
def test_t_tail_equals_scipy(t, dof):
    assert t_upper_tail(t, dof) == pytest.approx(stats.t.sf(t, dof), rel=1e-9, abs=1e-300)


@given(p=st.floats(1e-6, 0.49), dof=st.integers(2, 100))
def test_t_quantile_turns_the_tail_round(p, dof):
    assert t_upper_tail(t_quantile(p, dof), dof) == pytest.approx(p, rel=1e-6)


@given(a=st.floats(0.5, 300), b=st.floats(0.5, 300), x=st.floats(0, 1))
def test_incomplete_beta_equals_scipy(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-8, abs=1e-12)


@given(n=st.integers(1, 600), data=st.data())
def test_clopper_pearson_equals_scipy(n, data):
    events = data.draw(st.integers(0, n))
    interval = stats.binomtest(events, n).proportion_ci(method="exact")
    assert clopper_pearson(events, n) == pytest.approx((interval.low, interval.high), abs=1e-9)
