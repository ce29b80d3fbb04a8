"""A copy in tiles has the bytes of a copy by numpy, compiled or not."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.checkpoint import tiles
from pretrace.checkpoint.tiles import Steps, copy_box, plain_box


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
@pytest.mark.parametrize(("rows", "columns"), [(300, 1257), (8192, 64), (1, 270_000), (270_000, 1)])
def test_a_transpose_in_tiles_is_numpys(dtype, rows, columns):
    source = np.random.default_rng(0).integers(0, 255, rows * columns).astype(dtype)
    out = np.zeros_like(source)
    copy_box(source, out, (columns, rows), (rows, 1), (1, columns))
    assert (out.reshape(columns, rows) == source.reshape(rows, columns).T).all()


@given(st.data())
def test_any_box_is_copied_as_numpy_copies_it_and_gaps_are_left_alone(data):
    sizes = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))

    def strides():
        order, step, found = data.draw(st.permutations(range(len(sizes)))), 1, {}
        for axis in order:
            found[axis], step = step, step * sizes[axis] + data.draw(st.integers(0, 2))
        return tuple(found[axis] for axis in range(len(sizes)))

    to, of = strides(), strides()
    axes = sorted(zip(to, sizes, of), reverse=True)
    box = tuple(tuple(axis[k] for axis in axes) for k in (1, 0, 2))
    source = np.arange(tiles._last(box[0], box[2]) + 1, dtype=np.float32)
    fast, slow = (np.full(tiles._last(box[0], box[1]) + 1, -1, np.float32) for _ in range(2))
    assert tiles._kernel(4) is not None
    with patch.multiple(tiles, _LARGE=0, _COLUMNS=1, _RUN=5):
        copy_box(source, fast, *box)
    plain_box(source, slow, *box)
    assert (fast == slow).all()


def test_steps_along_several_axes_count_the_last_one_fastest():
    steps = Steps.along([(2, 100, 5), (3, 10, 1)])
    assert steps.to.tolist() == [0, 10, 20, 100, 110, 120]
    assert steps.of.tolist() == [0, 1, 2, 5, 6, 7]


def test_rotary_pairs_are_turned_and_interleaved_in_one_copy():
    """[heads, 2, half, in] -> [in, heads, half, 2], as MaxText stores a query."""
    source = np.arange(3 * 2 * 16 * 512, dtype=np.uint16)
    out = np.empty_like(source)
    copy_box(source, out, (512, 3, 16, 2), (96, 32, 2, 1), (1, 32 * 512, 512, 16 * 512))
    assert (out.reshape(512, 3, 16, 2) == source.reshape(3, 2, 16, 512).transpose(3, 0, 2, 1)).all()


def test_runs_that_are_runs_on_both_sides_are_left_to_numpy(monkeypatch):
    monkeypatch.setattr(tiles, "_tiled", None)
    source = np.arange(1 << 20, dtype=np.uint16)
    half = np.empty(1 << 19, np.uint16)
    copy_box(source, half, (1024, 512), (512, 1), (1024, 1))  # the first columns of a matrix, as a rank holds them
    assert (half.reshape(1024, 512) == source.reshape(1024, 1024)[:, :512]).all()


def test_without_a_compiler_numpy_does_it(monkeypatch):
    monkeypatch.setattr(tiles, "_kernels", {2: None})
    source = np.arange(300 * 300, dtype=np.uint16)
    out = np.zeros_like(source)
    copy_box(source, out, (300, 300), (300, 1), (1, 300))
    assert (out.reshape(300, 300) == source.reshape(300, 300).T).all()


def test_a_box_that_leads_outside_is_no_copy():
    with pytest.raises(AssertionError):
        copy_box(np.zeros(9, np.uint16), np.zeros(8, np.uint16), (3, 3), (3, 1), (1, 3))
