"""A copy in tiles has the bytes of a copy by numpy, compiled or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.checkpoint import tiles
from pretrace.checkpoint.tiles import copy_plane, plain_box


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
@pytest.mark.parametrize(("rows", "columns"), [(300, 257), (1024, 64), (1, 70_000), (70_000, 1)])
def test_a_transpose_in_tiles_is_numpys(dtype, rows, columns):
    source = np.random.default_rng(0).integers(0, 255, rows * columns).astype(dtype)
    fast, slow = np.zeros_like(source), np.zeros_like(source)
    sizes, target, stored = (columns, rows), (rows, 1), (1, columns)
    copy_plane(source, fast, sizes, target, stored)
    plain_box(source, slow, sizes, target, stored)
    assert (fast == slow).all()
    assert (fast.reshape(columns, rows) == source.reshape(rows, columns).T).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
def test_strides_with_gaps_leave_the_gaps_alone(rows, columns, gap, more):
    source = np.arange(rows * (columns + gap), dtype=np.float32)
    fast = np.full(columns * (rows + more), -1, np.float32)
    slow = fast.copy()
    plane = (columns, rows), (rows + more, 1), (1, columns + gap)
    kernel = tiles._kernel(4)
    assert kernel is not None
    kernel(source.ctypes.data, fast.ctypes.data, *plane[0], *plane[1], *plane[2])
    plain_box(source, slow, *plane)
    assert (fast == slow).all()


def test_without_a_compiler_numpy_does_it(monkeypatch):
    monkeypatch.setattr(tiles, "_kernels", {2: None})
    source = np.arange(300 * 300, dtype=np.uint16)
    out = np.zeros_like(source)
    copy_plane(source, out, (300, 300), (300, 1), (1, 300))
    assert (out.reshape(300, 300) == source.reshape(300, 300).T).all()
