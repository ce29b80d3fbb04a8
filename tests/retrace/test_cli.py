"""The verb: exit codes, JSON, and the files it leaves."""

import json
from pathlib import Path

import pytest

from pretrace.cli.main import main
from pretrace.retrace import load_case


def leave(*argv):
    with pytest.raises(SystemExit) as stop:
        main([str(part) for part in argv])
    return stop.value.code


@pytest.fixture
def case_file(made):
    """The case file of the shared case, whose runs are kept in its folder."""
    return made[0] / "case.yaml"


def test_a_contradicted_claim_leaves_with_one_and_says_why(case_file, capsys):
    assert leave("retrace", "run", case_file, "--out", case_file.parent, "--workers", 0) == 1
    text = capsys.readouterr().out
    assert text.startswith("case locked: ")
    assert "Verdict ✗ CONTRADICTED: the rival 'a' explains it." in text
    assert (case_file.parent / "result.json").is_file()
    assert "CONTRADICTED" in (case_file.parent / "report.html").read_text()


def test_json_is_one_object_and_nothing_else(case_file, capsys):
    assert leave("retrace", "run", case_file, "--out", case_file.parent, "--workers", 0, "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["outcome"] == "contradicted"
    assert data["hypotheses"][1]["name"] == "a"


def test_init_writes_a_case_that_can_be_read_and_never_over_another(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    assert leave("retrace", "init", path) == 0
    assert load_case(path).deciding_step == 16
    assert leave("retrace", "init", path) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_schema_names_every_key(capsys):
    assert leave("retrace", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"claim", "hypotheses", "benign", "decoys", "deciding_step"} <= set(schema["required"])
    assert schema["additionalProperties"] is False


def test_a_case_that_is_not_there_leaves_with_two(tmp_path, capsys):
    assert leave("retrace", "run", tmp_path / "none.yaml") == 2
    assert "where" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [(None, "does not exist"), ("", "no document")])
def test_the_demo_names_a_corpus_that_is_missing_or_empty(tmp_path, capsys, content, message):
    corpus = tmp_path / "corpus.jsonl"
    if content is not None:
        corpus.write_text(content)
    assert leave("demo", "--quick", "--out", tmp_path / "out", "--corpus", corpus) == 2
    assert message in capsys.readouterr().err


def test_the_demo_does_not_remove_what_it_did_not_make(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("do not remove")
    assert leave("demo", "--quick", "--out", tmp_path) == 2
    assert (tmp_path / "thesis.txt").is_file()


def test_the_demo_says_when_its_folder_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert leave("demo", "--quick", "--out", tmp_path / "file" / "demo") == 2
    assert "where" in capsys.readouterr().err


def test_the_published_schema_is_the_one_that_is_used(capsys):
    published = Path(__file__).parents[2] / "docs" / "case.schema.json"
    leave("retrace", "schema")
    assert json.loads(capsys.readouterr().out) == json.loads(published.read_text())


def test_a_plan_says_what_a_case_costs_before_it_starts(case_file, capsys):
    assert leave("retrace", "plan", case_file, "--budget", 1, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["declared"]["runs"] == 3 * (5 + 19)
    assert data["affordable"]["decoys"] == 99
