"""A series: copied steps and shards, steps in the wrong place, breaks in the norm, and what is explained."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from pretrace.audit import series
from pretrace.compare.steps import steps_in


def states(n, seed=0, size=400):
    """A run: a random walk whose norm grows smoothly."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(8, size))
    drift = rng.normal(size=(8, size))
    walk = []
    for _ in range(n):
        walk.append(x.astype(np.float32))
        x = x + 0.05 * drift + 0.02 * rng.normal(size=(8, size))
    return walk


def write(folder, walk, labels=None, parts=2):
    for i, state in enumerate(walk):
        step = (labels or range(0, 100 * len(walk), 100))[i]
        (folder / f"step{step}").mkdir(parents=True)
        for k, rows in enumerate(np.array_split(state, parts)):
            tensors = {f"blocks.{k}.w{j}": row.reshape(20, -1) for j, row in enumerate(rows)}
            save_file(tensors, folder / f"step{step}" / f"model-{k}.safetensors")
    return steps_in(folder)


def codes(found, *severities):
    return [f.code for f in found.findings if f.severity in (severities or ("error", "warning"))]


def test_a_run_is_not_accused(tmp_path):
    found = series(write(tmp_path, states(9)))
    assert codes(found) == []
    assert found.outcome == "pass"
    assert np.all(np.diff(found.curves.norm) != 0)


def test_steps_that_hold_the_last_ones_files_are_named(tmp_path):
    walk = states(6)
    walk[1] = walk[3] = walk[5]
    found = series(write(tmp_path, walk))
    (finding,) = [f for f in found.findings if f.code == "trajectory-same"]
    assert finding.evidence == {"steps": [100, 300], "same_as": 500}
    assert "2 of 6 steps are not their own" in finding.what


def test_one_shard_of_the_last_step_is_named(tmp_path):
    walk = states(6)
    walk[2][:4] = walk[5][:4]
    found = series(write(tmp_path, walk))
    assert codes(found)[0] == "trajectory-shard"
    assert found.findings[0].where == "step200/model-0.safetensors"


def test_equal_tensors_in_other_shards_are_seen(tmp_path):
    walk = states(6)
    walk[2][0] = walk[5][0]
    found = series(write(tmp_path, walk))
    (finding,) = [f for f in found.findings if f.code == "trajectory-tensor"]
    assert (finding.evidence["steps"], finding.evidence["tensors"]) == ([200, 500], ["blocks.0.w0"])


def test_a_step_of_a_later_time_is_nearer_to_that(tmp_path):
    walk = states(9)
    walk[2] = walk[8] + np.float32(1e-3) * np.random.default_rng(5).normal(size=walk[8].shape).astype(np.float32)
    found = series(write(tmp_path, walk))
    (finding,) = [f for f in found.findings if f.code == "trajectory-nearest"]
    assert (finding.evidence["step"], finding.evidence["nearest"]) == (200, 800)


def test_a_step_of_another_run_is_a_detour(tmp_path):
    walk = states(9)
    walk[4] = states(9, seed=7)[4]
    found = series(write(tmp_path, walk))
    assert [f.evidence["step"] for f in found.findings if f.code == "trajectory-detour"] == [400]


def test_a_break_in_the_norm_is_seen(tmp_path):
    walk = states(9)
    walk[5] = walk[5] * np.float32(1.2)
    assert [f.evidence["step"] for f in series(write(tmp_path, walk)).findings if f.severity == "error"] == [500]


def test_an_early_norm_that_is_not_monotone_is_no_break():
    from pretrace.audit.curve import _off_the_line

    # A sound run, saved at doubling steps: the norm of its head falls before it grows.
    norms = np.array([28.61, 28.60, 28.60, 28.60, 28.52, 28.92])
    assert _off_the_line((0, 2, 4, 8, 16, 32), norms) == []
    # EleutherAI/pythia#206: the embedding of one step is the final model's.
    assert _off_the_line((48, 49, 50, 51, 52, 53), np.array([1.52, 1.518, 1.5169, 1.3056, 1.5132, 1.511])) == [3]


def test_identical_first_steps_are_explained_and_not_accused(tmp_path):
    walk = states(5)
    walk[1] = walk[0]
    found = series(write(tmp_path, walk, labels=[0, 1, 512, 1000, 2000]))
    assert codes(found) == []
    assert codes(found, "info") == ["trajectory-first-steps"]


def test_a_frozen_file_is_explained_and_not_accused(tmp_path):
    walk = states(5)
    for state in walk:
        state[4:] = walk[0][4:]
    assert codes(series(write(tmp_path, walk)), "info") == ["trajectory-frozen"]


def test_a_gap_in_a_regular_spacing_is_said(tmp_path):
    found = series(write(tmp_path, states(5), labels=[0, 100, 200, 500, 600]))
    assert [(f.code, f.evidence["steps"]) for f in found.findings] == [("trajectory-missing", [300, 400])]


def test_a_change_of_dtype_is_said(tmp_path):
    walk = states(4)
    walk[2:] = [state.astype(np.float16) for state in walk[2:]]
    assert codes(series(write(tmp_path, walk))) == ["dtype-change"]


def test_without_reading_files_are_compared_and_curves_are_not_checked(tmp_path):
    walk = states(6)
    walk[3] = walk[5]
    found = series(write(tmp_path, walk), read=False)
    assert codes(found) == ["trajectory-same"]
    assert "curves of norm and distance" in {c.check for c in found.checks_not_run}


def test_a_stopped_audit_goes_on_from_what_it_kept(tmp_path):
    steps = write(tmp_path / "run", states(4))
    first = series(steps, keep=tmp_path / "kept")
    done = []
    again = series(steps, keep=tmp_path / "kept", done=done.append)
    assert again.curves.norm == first.curves.norm
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_a_damaged_step_is_reported_and_the_rest_goes_on(tmp_path):
    steps = write(tmp_path, states(5))
    file = tmp_path / "step200" / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:3000])
    found = series(steps)
    assert found.outcome == "fail"
    assert any(f.code.startswith("header") and f.what.startswith("step200") for f in found.findings)
    assert "trajectory-detour" not in codes(found)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_steps_are_refused(tmp_path, n):
    from pretrace.errors import PretraceError

    with pytest.raises(PretraceError, match="at least two steps"):
        series(write(tmp_path, states(n)))
