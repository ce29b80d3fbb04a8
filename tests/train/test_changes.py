import json

import pytest

import tiny_recipe
from pretrace.errors import PretraceError
from pretrace.train import RunFolder, resume, run
from runs import assert_same, log


@pytest.fixture
def stopped(tmp_path):
    run(tiny_recipe.recipe(tmp_path, steps=6), tmp_path / "run")
    return tmp_path / "run"


def edit(folder, a, b):
    path = RunFolder(folder).recipe
    assert a in path.read_text()
    path.write_text(path.read_text().replace(a, b))


def changes(folder):
    return json.loads((folder / "changes.json").read_text())


def test_a_changed_recipe_is_refused_and_the_change_is_named(stopped):
    edit(stopped, "peak: 0.01", "peak: 0.02")
    with pytest.raises(PretraceError, match=r"step\.schedule\.peak is 0\.02, was 0\.01") as caught:
        resume(stopped)
    assert "--allow step.schedule.peak" in caught.value.mend
    assert not (stopped / "changes.json").exists()


def test_a_change_that_is_meant_is_taken_and_recorded(stopped):
    edit(stopped, "peak: 0.01", "peak: 0.02")
    edit(stopped, "steps: 6", "steps: 8")
    with pytest.raises(PretraceError, match=r"steps is 8, was 6"):
        resume(stopped, allow=["step.schedule"])
    assert resume(stopped, allow=["step.schedule", "steps"]).steps == 8
    (record,) = changes(stopped)
    assert record["step"] == 6
    assert record["changes"] == [
        {"key": "step.schedule.peak", "a": 0.01, "b": 0.02}, {"key": "steps", "a": 6, "b": 8},
    ]  # fmt: skip
    assert [row["lr"] for row in log(stopped)] == [0.01] * 6 + [0.02] * 2


def test_more_steps_continue_to_the_bits_of_the_longer_run(stopped, tmp_path):
    assert resume(stopped, changes={"steps": 12}).steps == 12
    run(tiny_recipe.recipe(tmp_path), tmp_path / "whole")
    assert_same(stopped, tmp_path / "whole")
    assert changes(stopped)[0]["is"] == RunFolder(stopped).recipe_digest.read_text().strip()


def test_a_kill_between_recipe_and_digest_does_not_lock_the_run_out(stopped):
    digest = RunFolder(stopped).recipe_digest
    before = digest.read_text()
    resume(stopped, changes={"steps": 8})
    digest.write_text(before)  # the recipe was written, its digest not yet
    assert resume(stopped).steps == 8
    assert digest.read_text() != before


def test_what_is_saved_when_may_change_without_a_word(stopped):
    edit(stopped, "keep_states: 2", "keep_states: 1")
    assert resume(stopped).steps == 6


def test_a_change_that_the_state_does_not_fit_leaves_the_run_as_it_was(tmp_path):
    run(tiny_recipe.recipe(tmp_path), tmp_path / "run")
    kept = (tmp_path / "run" / "recipe.yaml").read_bytes()
    for changes, said in (({"model.d_model": 32}, "the model wants"), ({"steps": 10**6}, "need 4,000,000 samples")):
        with pytest.raises(PretraceError, match=said):
            resume(tmp_path / "run", changes=changes)
        assert (tmp_path / "run" / "recipe.yaml").read_bytes() == kept
        assert not (tmp_path / "run" / "changes.json").exists()
    assert resume(tmp_path / "run", changes={"steps": 14}).steps == 14
