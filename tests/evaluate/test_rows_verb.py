import gzip
import json

import pytest
from typer.testing import CliRunner

from assets import GOLDEN, unpacked
from evaluate_toys import row, samples
from pretrace.cli.main import app
from pretrace.evaluate.rows import write_rows

HARNESS = GOLDEN / "evaluate" / "harness-0.4.13"


def call(*words):
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "stories"
    folder.mkdir()
    for packed in HARNESS.glob("*.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def toy(folder, rights, task="hellaswag"):
    folder.mkdir()
    rows = [
        row(text, [ll], doc_id=i, idx=idx, gold=0, task=task)
        for i, right in enumerate(rights)
        for idx, (text, ll) in enumerate(((" yes", -1.0 if right else -3.0), (" no", -2.0)))
    ]
    about = {"task": task, "checkpoint": {"digest": folder.name}, "max_length": 64}
    write_rows(folder / f"samples-{task}.jsonl.zst", samples(*rows, **about))
    return folder


def test_rows_of_the_harness_are_said_with_their_intervals(harness):
    found = call(harness)
    assert found.exit_code == 0
    assert "hellaswag acc" in found.stdout
    assert "8 of 10,042 rows: standard error" in found.stdout


def test_a_published_figure_is_explained(harness, tmp_path):
    own = json.loads(next(harness.glob("results*")).read_text())["results"]["local_wikitext"]["bits_per_byte,none"]
    found = call(harness, "--explain", f"wikitext.bits_per_byte={own:.3f}", "--html", tmp_path / "p.html")
    assert found.exit_code == 0
    assert "is the harness's own bits_per_byte of these log-likelihoods" in found.stdout
    assert "<h1>Evaluation of stories</h1>" in (tmp_path / "p.html").read_text()


def test_a_figure_that_no_convention_prints_is_a_finding(harness):
    found = call(harness, "--explain", "wikitext.bits_per_byte=1.01", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["explained"][0]["outcome"] == "none"


def test_a_figure_that_few_rows_cannot_tell_is_undecided(harness):
    found = call(harness, "--explain", "hellaswag.acc=49%")
    assert found.exit_code == 3
    assert found.stdout.startswith("On 8 of 10,042 rows 49% is not distinguishable from ours")


def test_two_models_on_few_rows_are_not_distinguishable(tmp_path):
    a, b = toy(tmp_path / "a", [True, False] * 20), toy(tmp_path / "b", [True, False] * 19 + [True, True])
    found = call(a, b)
    assert found.exit_code == 0
    assert "hellaswag acc: not distinguishable on 40 of 10,042 rows (standard errors" in found.stdout


def test_old_published_results_stand_beside_ours(harness, tmp_path):
    results = unpacked("results") / "results"
    found = call(harness, "--against", results / "example_pythia160m_step143000.json", "--json")
    beside = json.loads(found.stdout)["beside"]
    assert {b["task"] for b in beside} == {"lambada_openai"}
    assert found.exit_code == 1  # a model of 260,000 parameters is none of 160 million
    several = call(harness, "--against", results / "pythia_v1_evals.csv").exception
    assert several.what == "the figures are of 18 models"
    one = call(harness, "--against", results / "pythia_v1_evals.csv", "--whose", "pythia-70m", "--fewshot", 0)
    assert "figures differ by more than their intervals" in one.stdout


def test_two_files_of_results_stand_beside_each_other_without_rows(harness):
    old = unpacked("results") / "results" / "example_pythia160m_step143000.json"
    found = call(next(harness.glob("results_*.json")), "--against", old, "--json")
    assert {b["task"] for b in json.loads(found.stdout)["beside"]} == {"lambada_openai"}


def test_no_common_figure_is_said(tmp_path):
    old = unpacked("results") / "results" / "example_pythia160m_step143000.json"
    found = call(toy(tmp_path / "a", [True, False]), "--against", old)
    assert found.stdout.startswith("No figure is in both: other tasks, other metrics, or another step.")


def test_rows_that_are_missing_in_between_are_said(harness, tmp_path):
    source = next(harness.glob("samples_local_hellaswag*"))
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / source.name).write_text("".join(lines[:2] + lines[4:]))
    found = call(tmp_path)
    assert "local_hellaswag: 6 of 10,042 rows" in found.stdout
    assert "2 rows missing (2, 3)" in found.stdout


def test_a_card_is_written(harness, tmp_path):
    found = call(harness, "--card", tmp_path / "card.md", "--whose", "mine")
    assert found.exit_code == 0
    assert "model-index" in (tmp_path / "card.md").read_text()


def test_a_command_is_checked_without_any_rows():
    found = call("--check-command", "lm_eval --model hf --model_args pretrained=gpt2,--max_length=512 --tasks wikitext")
    assert found.exit_code == 1
    assert "dash-in-key" in found.stdout
    good = call(
        "--check-command", "lm_eval --model hf --model_args pretrained=gpt2,max_length=512 --tasks wikitext", "--json"
    )
    assert good.exit_code == 0
    assert json.loads(good.stdout) == {"outcome": "pass", "findings": []}


@pytest.mark.parametrize("words", [(), ("nowhere",), ("--explain", "x=3"), (".", "--explain", "wikitext")])
def test_what_cannot_be_answered_is_one_error(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call(*words)
    assert found.exit_code != 0
    assert not isinstance(found.exception, (ValueError, KeyError, TypeError))
