import numpy as np
import pytest
from scipy import stats

from pretrace.errors import PretraceError
from pretrace.provenance import RULES, Runs, judge, judge_all
from worlds import World


def judged(world, runs, reference):
    world.add("reference", reference)
    return judge(world.gram(), "claim", "reference", runs, RULES)


def test_the_true_order_is_reproduced():
    world = World(1)
    own, runs = world.hypothesis("claim")
    found = judged(world, runs, world.drift + own + 0.01 * world.direction())
    assert (found.status, found.p_exact, found.n_decoys) == ("reproduced", 0.05, 19)
    assert found.centred > 0.99
    assert found.share == pytest.approx(1, abs=0.01)
    assert found.p_same > 0.01


def test_another_order_of_the_same_data_is_absent():
    world = World(2)
    _, runs = world.hypothesis("claim")
    found = judged(world, runs, world.drift + world.direction())
    assert found.status == "absent"
    assert abs(found.centred) < 0.2
    assert found.u_cos > 0.9  # the plain cosine is fooled by the drift


def test_half_the_update_is_partial_and_the_share_says_how_much():
    world = World(3)
    own, runs = world.hypothesis("claim")
    found = judged(world, runs, world.drift + 0.5 * own + 0.7 * world.direction())
    assert found.status == "partial"
    assert found.share == pytest.approx(0.5, abs=0.1)


def test_noise_at_right_angles_lowers_the_score_and_not_the_share():
    world = World(4)
    own, runs = world.hypothesis("claim")
    found = judged(world, runs, world.drift + own + 0.9 * world.direction())
    assert found.centred < 0.8
    assert found.share == pytest.approx(1, abs=0.1)
    assert found.p_same < RULES.same_alpha


def test_an_update_of_another_length_is_reproduced_and_not_the_same():
    world = World(9)
    own, runs = world.hypothesis("claim")
    found = judged(world, runs, world.drift + 0.5 * own)  # half the learning rate, the same data
    assert found.status == "reproduced"
    assert found.share == pytest.approx(0.5, abs=0.05)
    assert found.p_same < RULES.same_alpha


def test_a_tenth_more_in_length_is_not_the_same():
    world = World(10)
    own, runs = world.hypothesis("claim")
    assert judged(world, runs, world.drift + 1.1 * own).p_same < RULES.same_alpha


def test_benign_noise_above_the_effect_is_blind():
    world = World(5, noise=5.0)
    own, runs = world.hypothesis("claim")
    assert judged(world, runs, world.drift + own).status == "blind"


def test_a_duel_is_one_at_the_claim_and_zero_at_the_rival():
    world = World(6)
    (own, a), (_, b) = world.hypothesis("claim"), world.hypothesis("rival")
    world.add("reference", world.drift + own)
    duel = judge_all(world.gram(), "reference", "claim", {"claim": a, "rival": b}, RULES)["claim"].duels["rival"]
    assert duel.share == pytest.approx(1, abs=0.02)
    assert duel.won_by_claim(RULES)
    assert not duel.won_by_rival(RULES)


@pytest.mark.parametrize(("approximate", "won"), [(False, True), (True, False)])
def test_near_rivals_have_no_duel_where_predictions_are_approximate(approximate, won):
    world = World(11)
    own, a = world.hypothesis("claim")
    _, b = world.hypothesis("rival", own=0.98 * own + 0.2 * world.direction())
    world.add("reference", world.drift + own + 0.5 * world.direction())
    hypotheses = {"claim": a, "rival": b}
    found = judge_all(world.gram(), "reference", "claim", hypotheses, RULES, approximate=approximate)
    assert found["claim"].duels["rival"].won_by_claim(RULES) == won


def test_too_few_decoys_are_refused_with_the_smallest_p_they_could_give():
    world = World(7)
    _, runs = world.hypothesis("claim", n_decoys=9)
    with pytest.raises(PretraceError, match=r"smallest p is 0\.100"):
        judged(world, runs, world.drift)


def test_too_few_benign_reruns_are_refused():
    world = World(8)
    _, runs = world.hypothesis("claim", n_own=2)
    with pytest.raises(PretraceError, match="2 benign reruns"):
        judged(world, runs, world.drift)


def test_the_exact_p_is_uniform_where_the_reference_is_independent_of_the_order():
    # 600 worlds, 20 possible values. chi-square at this fixed seed; a valid p fails such a test once in a hundred seeds.
    counts = np.zeros(20, int)
    for seed in range(600):
        found = _null(seed)
        counts[round(found.p_exact * 20) - 1] += 1
    assert stats.chisquare(counts).pvalue > 0.01
    assert counts[0] / 600 == pytest.approx(0.05, abs=0.03)


def _null(seed):
    """Few dimensions of very unequal size and an outlying reference: nothing but exchangeability makes the rank uniform."""
    rng = np.random.default_rng(seed)
    scale = 1 / np.arange(1, 9)
    rows = {"start": np.ones(8), "reference": 3 * rng.standard_t(2, size=8) * scale}
    orders = {f"d{j}": 1 + rng.standard_t(3, size=8) * scale for j in range(20)}
    rows |= orders
    rows |= {f"rerun{k}": orders["d0"] + 1e-3 * rng.normal(size=8) for k in range(3)}
    from pretrace.provenance import gram_of

    gram = gram_of(list(rows), [np.stack(list(rows.values()))])
    runs = Runs(("d0", "rerun0", "rerun1", "rerun2"), tuple(f"d{j}" for j in range(1, 20)))
    return judge(gram, "claim", "reference", runs, RULES)
