from types import SimpleNamespace

import numpy as np
import pytest

import pretrace.retrace.integrity as integrity
from pretrace.findings import Finding
from pretrace.retrace.integrity import check


@pytest.fixture(autouse=True)
def files(monkeypatch):
    """The files of the series have been audited and nothing was found; `audit` has tests of its own."""
    monkeypatch.setattr(integrity, "series", lambda *_, **__: SimpleNamespace(findings=()))
    monkeypatch.setattr(integrity, "checkpoint", lambda *_: SimpleNamespace(findings=()))


@pytest.fixture
def series(tmp_path):
    """Steps 0, 1, 2, 4, 8 of a walk with a drift."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(0.3 * rng.normal(size=(9, 500)) + rng.normal(size=500), axis=0)
    vectors = {}
    for step in (0, 1, 2, 4, 8):
        vectors[step] = tmp_path / f"{step}.npy"
        np.save(vectors[step], walk[step].astype(np.float16))
    return vectors


def codes(vectors):
    return [finding.code for finding in check(vectors, vectors, "float16", "series")]


def test_a_sound_series_has_no_finding(series):
    assert codes(series) == []


def test_a_step_that_serves_another_steps_weights_is_found(series):
    series[2].write_bytes(series[8].read_bytes())
    (found,) = check(series, series, "float16", "series")
    assert (found.code, found.evidence["steps"]) == ("repeated-step", [2, 8])


def test_step_one_may_equal_step_zero(series):
    series[1].write_bytes(series[0].read_bytes())
    assert codes(series) == []


def test_exchanged_steps_are_found(series):
    series[4], series[8] = series[8], series[4]
    assert "step-order" in codes(series)


def test_parameters_that_are_no_numbers_are_found(series):
    broken = np.load(series[4])
    broken[7] = np.nan
    np.save(series[4], broken)
    assert "not-finite" in codes(series)


@pytest.mark.parametrize(("code", "ends"), [("zero-region-all", True), ("nonfinite-overflow", False)])
def test_what_a_checkpoint_has_lost_ends_a_case_and_an_odd_buffer_does_not(series, monkeypatch, code, ends):
    found = Finding(code, "error", "2 matrices", "embed.weight", {}, "restore it")
    monkeypatch.setattr(
        integrity, "checkpoint", lambda path: SimpleNamespace(findings=(found,) if path.endswith("4.npy") else ())
    )
    said = check(series, series, "float16", "series")
    assert [finding.what for finding in said] == (["step 4: 2 matrices"] if ends else [])
