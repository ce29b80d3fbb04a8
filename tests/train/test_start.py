import shutil

import numpy as np
import pytest

import tiny_recipe
from pretrace.checkpoint import canonical, canonical_state, open_state
from pretrace.errors import PretraceError
from pretrace.train import RunFolder, begin, replay, resume, run
from pretrace.train.start import content_of
from runs import assert_same, same_weights


def content(path, model):
    with canonical(open_state(path), model) as view:
        return content_of(view)


@pytest.fixture
def published(tmp_path):
    """A run of 8 steps and the recipe that starts from its weights alone, to run to step 12."""
    recipe = tiny_recipe.recipe(tmp_path)
    run(recipe, tmp_path / "theirs")
    path = RunFolder(tmp_path / "theirs").checkpoint(8) / "model.safetensors"

    def starting(**moments):
        start = {"path": str(path), "content": content(path, recipe.model), "step": 8, "moments": moments}
        return recipe.with_values({"start": start})

    return starting


def test_zero_moments_start_with_the_weights_and_the_place_in_order_and_schedule(published, tmp_path):
    result = run(published(kind="zero"), tmp_path / "ours")
    assert result.steps == 12
    with open_state(RunFolder(tmp_path / "ours").checkpoint(8) / "model.safetensors") as view:
        assert content(tmp_path / "theirs" / "checkpoints" / "step-00000008", published(kind="zero").model)
        ours = {n: view.read(n, 0, view.info(n).numel).copy() for n in view.names()}
    with open_state(RunFolder(tmp_path / "theirs").checkpoint(8) / "model.safetensors") as view:
        assert all(np.array_equal(ours[n], view.read(n, 0, view.info(n).numel)) for n in view.names())
    theirs, rows = (replay_log(tmp_path / name) for name in ("theirs", "ours"))
    assert [r["step"] for r in rows] == [9, 10, 11, 12]
    assert [r["positions"] for r in rows] == [r["positions"] for r in theirs[8:]]
    assert rows[0]["loss"] == theirs[8]["loss"]


def replay_log(folder):
    from runs import log

    return log(folder)


def test_burnt_in_moments_are_those_of_gradients_at_the_fixed_start(published):
    recipe = published(kind="burn_in", updates=3)
    training = begin(recipe)
    state = training.state
    assert (training.step, state.optimizer.step, state.schedule_offset) == (8, 3, 5)
    theirs = begin(recipe, burn_in=False).state
    assert all(np.array_equal(state.params[n].detach(), theirs.params[n].detach()) for n in state.params)
    assert float(state.optimizer.tensors["exp_avg_sq"]["embed.weight"].sum()) > 0


def test_burnt_in_moments_come_closer_to_the_run_that_was_left(published, tmp_path):
    left = replay(tiny_recipe.recipe(tmp_path), [12]).snapshots[12]

    def distance(recipe, name):
        run(recipe, tmp_path / name)
        with open_state(RunFolder(tmp_path / name).checkpoint(12) / "train_state" / "tensors.safetensors") as view:
            return sum(float(np.square(view.read(f"param.{n}", 0, a.size) - a.ravel()).sum()) for n, a in left.items())

    assert distance(published(kind="burn_in", updates=8), "burnt") < 0.7 * distance(published(kind="zero"), "zero")


def test_a_start_resumes_to_the_same_bits(published, tmp_path):
    recipe = published(kind="burn_in", updates=2)
    recipe = recipe.with_values({"step.schedule.warmup_steps": 20})  # the place in the schedule is part of the state
    run(recipe, tmp_path / "whole")
    run(recipe.with_values({"steps": 10}), tmp_path / "parts")
    resume(tmp_path / "parts", changes={"steps": 12})
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_another_checkpoint_than_the_one_that_is_meant_is_refused(published, tmp_path):
    recipe = published(kind="zero")
    other = recipe.with_values({"start.path": str(RunFolder(tmp_path / "theirs").checkpoint(4))})
    with pytest.raises(PretraceError, match="the recipe means"):
        begin(other)


def test_a_start_given_in_memory_survives_a_resume_before_the_first_checkpoint_is_due(tmp_path):
    from pretrace.checkpoint import ArraysView

    recipe = tiny_recipe.recipe(tmp_path, checkpoints__at=[])
    start = ArraysView(replay(recipe.with_values({"seeds.init": 5}), [0]).snapshots[0])
    run(recipe, tmp_path / "whole", start=start)
    run(recipe.with_values({"steps": 3}), tmp_path / "parts", start=start)
    resume(tmp_path / "parts", changes={"steps": 12})
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.fixture
def stopped(tmp_path):
    """The training state of a run at step 8, and the recipe that starts from it with its own moments, to run to step 12."""
    recipe = tiny_recipe.recipe(tmp_path)
    run(recipe, tmp_path / "theirs")
    path = RunFolder(tmp_path / "theirs").checkpoint(8) / "train_state" / "tensors.safetensors"
    with canonical_state(open_state(path), recipe.model) as view:
        start = {"path": str(path), "content": content_of(view), "step": 8}
    return lambda updates=8: recipe.with_values({"start": {**start, "moments": {"kind": "stored", "updates": updates}}})


def test_stored_moments_go_on_to_the_bits_of_the_run_that_was_left(stopped, tmp_path):
    run(stopped(), tmp_path / "ours")
    assert same_weights(tmp_path / "ours", tmp_path / "theirs")
    assert replay_log(tmp_path / "ours") == replay_log(tmp_path / "theirs")[8:]


def test_another_age_than_that_of_the_moments_is_refused(stopped):
    """Bias correction counts from it."""
    with pytest.raises(PretraceError, match="its moments have seen 8 updates, the recipe says 2"):
        begin(stopped(updates=2))


def test_a_start_without_moments_is_refused_where_they_are_meant(published, tmp_path):
    recipe = published(kind="stored", updates=8)
    alone = shutil.copy(
        recipe.start.path, tmp_path / "alone.safetensors"
    )  # in its folder the training state lies beside it
    with pytest.raises(PretraceError, match="holds no moments"):
        begin(recipe.with_values({"start.path": str(alone)}))


def test_a_run_resumes_when_the_start_is_not_there_any_more(published, tmp_path):
    recipe = published(kind="zero")
    run(recipe, tmp_path / "whole")
    run(recipe.with_values({"steps": 10}), tmp_path / "parts")
    shutil.rmtree(tmp_path / "theirs")
    resume(tmp_path / "parts", changes={"steps": 12})
    assert_same(tmp_path / "parts", tmp_path / "whole")
