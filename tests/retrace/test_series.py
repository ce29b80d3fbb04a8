import numpy as np
import pytest

from pretrace.checkpoint import ArraysView
from pretrace.errors import PretraceError
from pretrace.retrace.series import blocks_of, flat, segments_of, steps_in


def test_the_digits_at_the_end_of_a_name_are_its_step(tmp_path):
    for name in ("step-00000002", "step16"):
        (tmp_path / name).mkdir()
    for name in ("weights_128.safetensors", ".step-3", "notes"):
        (tmp_path / name).touch()
    assert list(steps_in(tmp_path)) == [2, 16, 128]


def test_two_names_for_one_step_are_refused(tmp_path):
    for name in ("step-8", "step8"):
        (tmp_path / name).mkdir()
    with pytest.raises(PretraceError, match="both stand for step 8"):
        steps_in(tmp_path)


def test_a_folder_without_checkpoints_is_one_error(tmp_path):
    with pytest.raises(PretraceError, match="no checkpoint"):
        steps_in(tmp_path)


def test_the_flat_vector_holds_the_tensors_sorted_by_name():
    view = ArraysView({"b": np.float32([[3, 4]]), "a": np.float16([1, 2])})
    segments = segments_of(view)
    assert [(s.name, s.start, s.stop) for s in segments] == [("a", 0, 2), ("b", 2, 4)]
    assert flat(view, segments).tolist() == [1, 2, 3, 4]


def test_no_block_spans_two_tensors():
    view = ArraysView({"a": np.ones(3, np.float32), "b": np.ones(5, np.float32)})
    assert [len(block) for block in blocks_of(view, segments_of(view))] == [3, 5]
