"""The verb as a person runs it, in this process: the harness is imported once."""

import json

import pytest
from typer.testing import CliRunner

import evaluate_lab as lab
from pretrace.cli.main import app
from pretrace.errors import PretraceError


def run(*args):
    return CliRunner().invoke(app, ["evaluate", *map(str, args)])


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verb")
    rows = lab.rows_of("lambada_openai", folder, range(4))
    return "--tasks", "lambada_openai", "--data", f"lambada_openai={rows}", "--out", folder / "out"


def test_the_settings_stand_before_the_numbers(common):
    out = run(lab.STORIES, *common)
    assert out.exit_code == 0, out.output
    for line in ("max_length   512 (the model's own)", "prefix       1 (the tokenizer's begin-of-text token)",
                 "95% interval", "(4 documents)", "over               4 of 4 documents",
                 "published figures of lambada_openai are over 5,153 rows"):  # fmt: skip
        assert line in out.output


def test_json_has_the_keys_that_scripts_rely_on(common):
    out = run(lab.STORIES, *common, "--max-length", 64, "--json")
    found = json.loads(out.stdout)
    assert found["results"]["lambada_openai"].keys() == {"perplexity", "acc"}
    assert (found["harness"], found["max_length"]) == ("lm-eval 0.4.13", 64)
    assert found["denominators"]["lambada_openai"]["documents"] == 4
    assert found["intervals"]["lambada_openai"]["acc"].keys() == {"stderr", "low", "high", "n"}


def test_a_folder_of_steps_is_a_series(common, tmp_path):
    import shutil

    for step in (1, 2):
        shutil.copytree(lab.STORIES, tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    out = run(tmp_path / "run", *common)
    assert out.exit_code == 0, out.output
    lines = [line.split() for line in out.output.split("\n") if line.startswith("step ")]
    assert [line[:2] for line in lines] == [["step", "1"], ["step", "2"]]
    assert lines[0][2:] == lines[1][2:]


@pytest.mark.parametrize(
    "wrong", [("--bos", "perhaps"), ("--dtype", "float8"), ("--device", "cuda:77"), ("--tasks", ",")]
)
def test_wrong_usage_is_said_before_anything_is_computed(common, tmp_path, wrong):
    out = run(lab.STORIES, *common, "--out", tmp_path, *wrong)
    assert isinstance(out.exception, PretraceError)
    assert out.exception.exit_code == 2


def test_a_task_that_does_not_exist_has_near_ones(common, monkeypatch):
    from pretrace.evaluate import tasks

    monkeypatch.setattr(
        tasks.Loader, "_full", lambda _: type("Manager", (), {"all_tasks": ["wikitext", "hellaswag"], "load": none})
    )
    out = run(lab.STORIES, "--tasks", "hellaswagg")
    assert isinstance(out.exception, PretraceError)
    assert "did you mean hellaswag?" in out.exception.mend


def none(names):
    raise KeyError(f"Spec {names} is not a registered task/group/tag name or valid YAML path")


def test_the_same_weights_in_another_format_have_the_same_numbers(common):
    args = (*common, "--max-length", 512, "--json")
    llama2c = lab.MODELS / "stories260k" / "stories260K.bin"
    there = json.loads(run(llama2c, *args, "--tokenizer", lab.STORIES).stdout)
    assert there["results"] == json.loads(run(lab.STORIES, *args).stdout)["results"]


def test_a_stored_precision_that_is_not_taken_is_said(common, tmp_path):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(lab.STORIES, dtype="bfloat16").save_pretrained(tmp_path)
    out = run(tmp_path, *common, "--tokenizer", lab.STORIES)
    assert "float32 (not given; stored as bfloat16, which the harness's dtype=auto would take)" in out.output


def test_the_face_needs_neither_torch_nor_the_harness():
    import subprocess
    import sys

    heavy = ("torch", "lm_eval", "transformers", "datasets")
    code = f"import sys, pretrace.evaluate; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
