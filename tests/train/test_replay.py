import numpy as np
import pytest

import tiny_recipe
from pretrace.checkpoint.arrays import ArraysView
from pretrace.errors import PretraceError
from pretrace.train import replay


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[n].view(np.int32), b[n].view(np.int32)) for n in a)


def test_two_replays_have_equal_bits(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path)
    a, b = replay(recipe, [0, 12]), replay(recipe, [0, 12])
    assert equal(a.snapshots[12], b.snapshots[12])
    assert not equal(a.snapshots[0], a.snapshots[12])


def test_the_loss_falls(tmp_path):
    records = replay(tiny_recipe.recipe(tmp_path), [12]).records
    assert [r.step for r in records] == list(range(1, 13))
    assert records[-1].loss < records[0].loss - 0.5


def test_a_start_given_as_arrays_is_the_start(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path)
    first = replay(recipe, [0, 3])
    other = recipe.with_values({"seeds.init": 99})
    again = replay(other, [3], start=ArraysView(first.snapshots[0]))
    assert equal(again.snapshots[3], first.snapshots[3])


def test_the_set_of_samples_is_the_same_under_another_topology(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path)
    spread = recipe.with_values({"step.world_size": 1, "step.grad_accum_steps": 4, "step.micro_batch": 1})
    a, b = (replay(r, [1]) for r in (recipe, spread))
    assert a.records[0].positions == b.records[0].positions
    assert a.records[0].loss == pytest.approx(b.records[0].loss, rel=1e-6)


def test_exact_reduction_does_not_know_the_topology(tmp_path):
    exact = tiny_recipe.recipe(
        tmp_path, step__reduction__order={"kind": "exact", "exponent": 40}, step__micro_batch=1, step__world_size=4
    )
    spread = exact.with_values({"step.world_size": 1, "step.grad_accum_steps": 4})
    assert equal(replay(exact, [5]).snapshots[5], replay(spread, [5]).snapshots[5])


def test_too_few_samples_are_said_before_the_first_update(tmp_path):
    with pytest.raises(PretraceError, match="need 1,200 samples, the data give 299"):
        replay(tiny_recipe.recipe(tmp_path, steps=300), [300])
