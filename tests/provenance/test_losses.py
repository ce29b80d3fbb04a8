import numpy as np
import pytest
from scipy import stats

from pretrace.provenance.losses import delta_loss, midranks, palimpsest


def sample(shift, n=400, seed=0):
    """`n` sequences, half of them seen, whose loss fell by `shift` more."""
    rng = np.random.default_rng(seed)
    seen = np.arange(n) < n // 2
    return rng.normal(size=n) - shift * seen, seen


def test_sequences_that_were_seen_are_found():
    found = delta_loss(*sample(0.5), None, permutations=999, seed=1)
    assert found.p == 0.001
    assert found.z < -3
    assert found.statistic < 0.45


def test_sequences_that_were_not_seen_are_not():
    found = delta_loss(*sample(0.0), None, permutations=999, seed=1)
    assert found.p > 0.05
    assert found.statistic == pytest.approx(0.5, abs=0.06)


def test_the_statistic_is_mann_whitneys():
    change, seen = sample(0.3)
    u = stats.mannwhitneyu(change[seen], change[~seen]).statistic
    found = delta_loss(change, seen, None, permutations=9, seed=1)
    assert found.statistic == pytest.approx(u / (seen.sum() * (~seen).sum()))


def test_midranks_are_scipys():
    values = np.random.default_rng(0).integers(0, 5, size=50).astype(float)
    np.testing.assert_array_equal(midranks(values), stats.rankdata(values))


@pytest.mark.parametrize("grouped", [False, True])
def test_the_p_is_uniform_where_documents_carry_the_losses(grouped):
    # Each document has its own loss and lies wholly in or out of the window: nothing was seen, sequences are no evidence each.
    ps = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        units = np.repeat(np.arange(20), 10)
        change = rng.normal(size=20)[units] + 0.1 * rng.normal(size=200)
        ps.append(delta_loss(change, units < 10, units if grouped else None, permutations=99, seed=seed).p)
    false_alarms = np.mean(np.array(ps) <= 0.05)
    assert (false_alarms < 0.1) if grouped else (false_alarms > 0.2)  # sequences as units would cry wolf here


def test_what_came_last_is_remembered_best():
    rng = np.random.default_rng(0)
    step = rng.permutation(np.repeat(np.arange(64), 8))
    loss = rng.normal(size=512) - 0.01 * step
    found = palimpsest(loss, step, None, permutations=999, seed=1)
    assert found.p == 0.001
    assert found.statistic == pytest.approx(stats.spearmanr(loss, step).statistic, abs=1e-9)


def test_a_shuffled_claim_is_not_remembered():
    rng = np.random.default_rng(1)
    step = rng.permutation(np.repeat(np.arange(64), 8))
    assert palimpsest(rng.normal(size=512), step, None, permutations=999, seed=1).p > 0.05
