"""One run against others: where they part, and which is the nearest."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from pretrace import compare
from pretrace.compare.steps import step_of, steps_in
from pretrace.errors import PretraceError


def write_run(folder, values):
    for step, value in values.items():
        (folder / f"step{step}").mkdir(parents=True)
        save_file({"w": np.float32([1.0, value])}, folder / f"step{step}" / "model.safetensors")
    return steps_in(folder)


def test_the_first_difference_and_the_nearest_run_are_named(tmp_path):
    a = write_run(tmp_path / "a", {0: 0.0, 1: 1.0, 2: 2.0})
    near = write_run(tmp_path / "near", {0: 0.0, 1: 1.0, 2: 2.5})
    far = write_run(tmp_path / "far", {0: 0.0, 1: 3.0, 2: 4.0})
    found = compare.series(a, {"near": near, "far": far})
    assert found.first_difference == {"near": 2, "far": 1}
    assert [s.nearest for s in found.steps] == ["", "near", "near"]
    assert found.steps[2].margin == 4.0


def test_updates_are_counted_from_the_first_step(tmp_path):
    a = write_run(tmp_path / "a", {0: 1.0, 1: 2.0})
    b = write_run(tmp_path / "b", {0: 1.0, 1: 0.5})
    step = compare.series(a, {"b": b}).steps[1]
    assert step.against["b"].u_cos == -1.0
    assert step.against["b"].p_cos > 0


def test_steps_that_one_run_has_not_are_listed(tmp_path):
    a = write_run(tmp_path / "a", {0: 1.0, 1: 2.0, 3: 3.0})
    b = write_run(tmp_path / "b", {0: 1.0, 3: 3.0})
    found = compare.series(a, {"b": b})
    assert [s.step for s in found.steps] == [0, 3]
    assert found.not_compared == {"b": (1,)}
    assert found.same


def test_runs_without_a_common_step_are_refused(tmp_path):
    with pytest.raises(PretraceError, match="no step in common"):
        compare.series(write_run(tmp_path / "a", {0: 1.0}), {"b": write_run(tmp_path / "b", {5: 1.0})})


@pytest.mark.parametrize(
    ("path", "step"),
    [("step1000", 1000), ("step-00000128", 128), ("global_step400", 400), ("iter_0000100", 100), ("checkpoint-2000", 2000),
     ("runs/step5/model.safetensors", 5), ("footstep7", None), ("model", None)],
)  # fmt: skip
def test_the_step_is_read_from_the_usual_names(path, step):
    assert step_of(path) == step
