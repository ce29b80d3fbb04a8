"""The 49 checkpoints: what the reader itself must see, it sees at its place; on all others it is silent and reads them."""

import json

import pytest

from assets import checkpoint_cases
from pretrace.checkpoint import canonical, read_all, survey
from pretrace.errors import PretraceError

CASES = {case["id"]: case for case in json.loads((checkpoint_cases() / "cases.json").read_text())}
# What opening and checksums can see; statistics, references and forward passes belong to audit and compare.
OURS = {"header", "index", "files", "size", "pickle", "zip", "crc", "step", "replicas", "chunks"}
SERIES = {name for name in CASES if "trajectory" in name}


def seen_here(case):
    return {sight.removeprefix("audit:") for sight in case["seen_by"] if sight.startswith("audit:")} & OURS


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir()), "a file ran"


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if seen_here(c)])
def test_a_fault_of_the_files_is_seen_by_the_check_that_is_named(name):
    case = CASES[name]
    errors = [f for f in survey(checkpoint_cases() / name, deep=True).findings if f.severity == "error"]
    groups = {f.code.split("-")[0] for f in errors}
    assert groups & seen_here(case)
    for word in case["where"].split():
        if word.endswith((".safetensors", ".pt", ".distcp", ".bin", "latest")) and "*" not in word:
            assert any(word in f.where for f in errors), (word, errors)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not seen_here(c) and n not in SERIES])
def test_everything_else_opens_without_a_word_and_every_tensor_is_readable(name):
    seen = survey(checkpoint_cases() / name, deep=True)
    assert [f.code for f in seen.findings if f.severity != "info"] == []
    for tensor in seen.view.names():
        assert read_all(seen.view, tensor).shape == seen.view.info(tensor).shape


MODELS = [n for n, c in CASES.items() if c["level"] == "ok" and n not in (*SERIES, "good_bin", "good_dcp")]


@pytest.mark.parametrize("name", MODELS)
def test_good_ones_have_canonical_names_and_none_is_left_over(name):
    ours = canonical(survey(checkpoint_cases() / name).view)
    assert ours.metadata()["naming"].unmatched == ()


def test_names_of_no_model_are_said_to_be_unknown():
    with pytest.raises(PretraceError, match="no table knows"):
        canonical(survey(checkpoint_cases() / "good_dcp").view)


@pytest.mark.parametrize("name", sorted(SERIES))
def test_a_folder_of_steps_is_no_checkpoint_but_each_step_is(name):
    with pytest.raises(PretraceError):
        survey(checkpoint_cases() / name)
    for step in sorted((checkpoint_cases() / name).iterdir()):
        assert survey(step).findings == ()
