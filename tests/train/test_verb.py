"""The verb, as a person calls it."""

import json
import re

import pytest
from typer.testing import CliRunner

import tiny_recipe
from pretrace.cli.main import app
from pretrace.data.tokenfile import write_pair
from pretrace.recipe import load, to_yaml
from pretrace.train import RunFolder
from runs import assert_same


def pretrace(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_recipe.recipe(tmp_path)))
    return tmp_path / "recipe.yaml"


def test_train_and_resume_print_the_keys_that_scripts_rely_on(recipe, tmp_path):
    first = pretrace(recipe, "--out", tmp_path / "run", "--set", "steps=4", "--log-to", "none", "--json")
    assert first.exit_code == 0, first.output
    assert {"steps", "loss", "checkpoints", "digest"} <= json.loads(first.stdout).keys()
    again = pretrace("--resume", tmp_path / "run", "--set", "steps=12", "--log-to", "none")
    assert "Trained 12 steps" in again.stdout
    pretrace(recipe, "--out", tmp_path / "whole", "--log-to", "none")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_an_item_of_a_list_is_set_by_its_number_and_the_last_line_names_the_held_out_loss(recipe, tmp_path):
    write_pair(tmp_path / "others", tiny_recipe.documents(seed=1), "uint16")
    plain = tiny_recipe.recipe(tmp_path)
    held_out = {"every": 4, "data": plain.data.model_dump(), "n_samples": 4, "micro_batch": 2, "target": None}
    recipe.write_text(to_yaml(plain.with_values({"evaluation": held_out, "steps": 1})))
    first = pretrace(
        recipe, "--out", tmp_path / "run", "--set", f"data.sources[0].path={tmp_path}/others", "--log-to", "none"
    )
    assert re.search(r"Trained 1 step, loss \d\.\d{4}, held-out \d\.\d{4}\. Newest", first.stdout), first.output
    back = pretrace("--resume", tmp_path / "run", "--set", "steps=2", "--set", f"data.sources.0.path={tmp_path}/tokens")
    assert back.exit_code == 0, back.output
    assert load(tmp_path / "run" / "recipe.yaml").data.sources[0].path == f"{tmp_path}/tokens"


def test_go_on_starts_continues_and_fetches_with_one_command(recipe, tmp_path):
    command = ["--out", tmp_path / "run", "--go-on", "--log-to", "none", "--mirror", f"file://{tmp_path}/mirror"]
    assert pretrace(recipe, *command, "--set", "steps=4").exit_code == 0
    (tmp_path / "run").rename(tmp_path / "lost")
    found = pretrace(recipe, *command, "--set", "steps=12")
    assert found.exit_code == 0, found.output
    pretrace(recipe, "--out", tmp_path / "whole", "--log-to", "none")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_trace_of_some_updates_is_left_in_the_run(recipe, tmp_path):
    assert pretrace(recipe, "--out", tmp_path / "run", "--profile", 2, "--log-to", "none").exit_code == 0
    trace = json.loads((RunFolder(tmp_path / "run").path / "profile" / "trace.json").read_text())
    assert any("mm" in str(event.get("name")) for event in trace["traceEvents"])
    assert "Self CPU" in (tmp_path / "run" / "profile" / "summary.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say what to train"),
        (("RECIPE",), "say where the run shall lie"),
        (("RECIPE", "--out", ""), "an empty text names no folder"),
        (("--resume", " "), "an empty text names no folder"),
        (("RECIPE", "--out", "run", "--resume", "run"), "leave one of them out"),
        (("RECIPE", "--out", "run", "--set", "steps=0"), "with --set steps=0"),
        (("--resume", "run", "--engine", "horovod"), "unknown engine"),
        (("RECIPE", "--out", "run", "--allow", "steps"), "--allow is for a resumed run"),
        (("RECIPE", "--out", "run", "--log-to", "csv"), "unknown logger"),
        (("RECIPE", "--out", "run", "--engine", "ddp"), "several processes"),
    ],
)
def test_wrong_usage_is_said_and_leaves_no_run(recipe, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    found = pretrace(*(recipe if a == "RECIPE" else a for a in arguments))
    assert said in str(found.exception)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_folder_inside_a_run_is_answered_with_the_run_it_belongs_to(recipe, tmp_path):
    pretrace(recipe, "--out", tmp_path / "run", "--set", "steps=1", "--log-to", "none")
    found = pretrace("--resume", tmp_path / "run" / "checkpoints" / "step-00000001")
    assert found.exception.mend == f"name the run's folder: {tmp_path / 'run'}"
