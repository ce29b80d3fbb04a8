"""The recipes of the repository: complete, sourced, what their generator writes, and the tiny ones train."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assets import unpacked
from pretrace.audit import checkpoint, series
from pretrace.model.spec import n_params
from pretrace.recipe import load
from pretrace.train import RunFolder, resume, run
from runs import assert_same, log

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def program(name, *arguments, folder):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    args = [sys.executable, str(RECIPES / name), *map(str, arguments)]
    done = subprocess.run(args, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_generator_writes_what_stands_here(tmp_path):
    program("generate.py", unpacked("configs") / "configs", tmp_path, folder=tmp_path)
    assert {p.name for p in tmp_path.glob("*.yaml")} == {f"{name}.yaml" for name in NAMES}
    for name in NAMES:
        assert (tmp_path / f"{name}.yaml").read_text() == (RECIPES / f"{name}.yaml").read_text(), name


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_source_and_pythias_assumptions_are_marked(name):
    recipe = load(RECIPES / f"{name}.yaml")
    unset = ("name", "start", "evaluation", "step.sources")
    bare = [k for k in recipe.values() if not recipe.source_of(k).where and not k.startswith(unset)]
    assert not bare
    if name.startswith("pythia") and not name.endswith("tiny"):
        assert recipe.source_of("step.reduction.order").kind == "assumed"
        assert recipe.step.global_batch == 1024
        size = name.removeprefix("pythia-").removesuffix("-deduped")
        config = json.loads((unpacked("configs") / f"configs/hf/pythia-{size}/config.json").read_text())
        assert recipe.model.n_layers == config["num_hidden_layers"]


def test_gpt2_takes_half_a_million_tokens_an_update():
    recipe = load(RECIPES / "gpt2-124m-fineweb-edu.yaml")
    assert recipe.step.global_batch * recipe.data.seq_len == 524_288
    assert n_params(recipe.model) == 124_439_808 + 47 * 768  # the vocabulary is padded from 50,257 to 50,304


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    program("prepare_tiny.py", folder / "data" / "tiny", folder=folder)
    return folder


def tiny(name, folder):
    recipe = load(RECIPES / f"{name}.yaml")
    held_out = recipe.evaluation.model_dump(mode="json")
    held_out["data"]["sources"][0]["path"] = str(folder / "data/tiny/held_out")
    train = {**recipe.data.sources[0].model_dump(mode="json"), "path": str(folder / "data/tiny/train")}
    return recipe.with_values({"data.sources": [train], "evaluation": held_out})


def assert_trains(name, books, out, steps, stop):
    recipe = tiny(name, books).with_values({"steps": steps, "evaluation.every": stop})
    run(recipe, out / "whole")
    run(recipe.with_values({"steps": stop}), out / "parts")
    resume(out / "parts", changes={"steps": steps})
    assert_same(out / "parts", out / "whole", steps)
    losses = [r["notes"]["held_out_loss"] for r in log(out / "whole") if r["notes"]]
    assert losses[-1] < losses[0] - 0.1
    checkpoints = RunFolder(out / "whole").whole_checkpoints()
    for path in checkpoints.values():
        audit = checkpoint(path)
        assert audit.outcome == "pass"
        assert [f for f in audit.findings if f.severity != "info"] == []
    assert series({step: str(path) for step, path in checkpoints.items()}).findings == ()


@pytest.mark.parametrize("name", ["gpt2-tiny", "pythia-tiny"])
def test_a_tiny_recipe_trains_resumes_lowers_its_loss_and_passes_the_audit(books, tmp_path, name):
    assert_trains(name, books, tmp_path, steps=8, stop=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["gpt2-tiny", "pythia-tiny"])
def test_a_tiny_recipe_passes_the_audit_at_steps_0_to_512(books, tmp_path, name):
    assert_trains(name, books, tmp_path, steps=512, stop=128)
