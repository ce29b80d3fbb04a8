import numpy as np
import pytest

from pretrace.provenance import RULES, judge_all, power_curve
from pretrace.provenance.power import smallest_fraction
from worlds import World


def world_with(noise, seed=1):
    world = World(seed, noise=noise)
    own, runs = world.hypothesis("claim")
    return world, own, runs


def test_more_benign_noise_hides_larger_changes():
    fractions = []
    for noise in (0.01, 0.1, 0.3):
        world, _, runs = world_with(noise)
        fractions.append(smallest_fraction(world.gram(), runs, RULES))
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.01 < fractions[2]


@pytest.mark.parametrize("factor", [2.0, 0.02])
def test_a_change_is_seen_above_the_smallest_fraction_and_not_far_below(factor):
    world, own, runs = world_with(noise=0.5)
    fraction = min(factor * smallest_fraction(world.gram(), runs, RULES), 1.0)
    changed = (1 - fraction) * own + np.sqrt(fraction * (2 - fraction)) * world.direction()
    _, rival = world.hypothesis("rival", own=changed)
    world.add("reference", world.drift + own)
    duel = judge_all(world.gram(), "reference", "claim", {"claim": runs, "rival": rival}, RULES)["claim"].duels["rival"]
    assert duel.won_by_claim(RULES) == (factor > 1)


def test_no_smaller_part_than_one_sequence_is_claimed():
    world, _, runs = world_with(noise=1e-6)
    curve, _ = power_curve({4: world.gram()}, runs, RULES, global_batch=8)
    assert curve[0].smallest_fraction == 1 / 32


def test_the_step_of_a_fraction_is_the_first_from_which_it_stays_visible():
    clear, _, runs = world_with(noise=1e-6)
    hazy, _, _ = world_with(noise=1.0)
    _, steps = power_curve({1: clear.gram(), 2: hazy.gram(), 4: clear.gram()}, runs, RULES, 100, fractions=(0.1, 1e-6))
    assert steps == {0.1: 4, 1e-6: None}
