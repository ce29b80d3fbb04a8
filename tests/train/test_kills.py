"""The kill matrix: a run killed at chance instants of every phase ends with the bits of a run that never stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_recipe
from pretrace.recipe import to_yaml
from pretrace.train import RunFolder
from runs import assert_same, assert_whole

KILLING = Path(__file__).with_name("killing.py")


def recipe(folder, asynchronous):
    held_out = {
        "every": 5, "data": tiny_recipe.recipe_data(folder / "tokens")["data"], "n_samples": 8, "micro_batch": 4, "target": None,
    }  # fmt: skip
    edits = {
        "steps": 18, "evaluation": held_out, "step.micro_batch": 1,
        "checkpoints.every": 3, "checkpoints.asynchronous": asynchronous,
    }  # fmt: skip
    return tiny_recipe.recipe(folder).with_values(edits)


def kill(folder, *, kills, seed, asynchronous):
    (folder / "recipe.yaml").write_text(to_yaml(recipe(folder, asynchronous)))
    args = [sys.executable, str(KILLING), str(folder), str(folder / "recipe.yaml"), str(kills), str(seed)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=200 + 5 * kills, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert sum(found["kills"].values()) == kills
    for run in found["folders"]:
        assert_same(Path(run), folder / "whole", 18)
        assert list(RunFolder(Path(run)).whole_checkpoints()) == list(RunFolder(folder / "whole").whole_checkpoints())
        assert_whole(Path(run))
        assert not list(Path(run).rglob(".tmp-*"))
    return found["kills"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asynchronous",
    [pytest.param(False, id="at_once", marks=pytest.mark.slow), pytest.param(True, id="in_the_background")],
)
def test_a_run_killed_eight_times_has_the_bits_of_one_that_never_stopped(tmp_path, asynchronous):
    kills = kill(tmp_path, kills=8, seed=1, asynchronous=asynchronous)
    assert kills == {"step": 2, "checkpoint": 2, "rotation": 2, "log": 2}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "asynchronous"), [(50, False), (50, True), (500, False)])
def test_a_run_killed_many_times_has_the_bits_of_one_that_never_stopped(tmp_path, kills, asynchronous):
    assert min(kill(tmp_path, kills=kills, seed=2, asynchronous=asynchronous).values()) >= kills // 4 - 1
