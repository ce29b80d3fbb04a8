"""Which chunk holds which elements, and in how large ones."""

import pytest

from pretrace.checkpoint.chunked import Chunk, StoredArray, chunk_shape


@pytest.mark.parametrize(
    ("shape", "most", "chunks"),
    [((), 8, ()), ((12, 4), 64, (4, 4)), ((7, 4), 64, (1, 4)), ((6, 40), 48, (1, 10)), ((2, 3, 8), 64, (1, 1, 8)),
     ((0, 4), 9, (1, 2))],
)  # fmt: skip
def test_chunks_are_runs_of_one_size_below_the_limit(shape, most, chunks):
    assert chunk_shape(shape, 4, most) == chunks


def test_chunks_follow_each_other_in_the_order_of_the_elements():
    array = StoredArray("a", "t", "float32", (4, 3), (2, 3))
    assert list(array.placed) == [Chunk((0, 0), "t", 0, 6), Chunk((1, 0), "t", 6, 12)]


def test_a_number_is_one_chunk():
    assert list(StoredArray("step", "t", "int32", (), ()).placed) == [Chunk((), "t", 0, 1)]


def test_chunks_of_a_stack_are_runs_of_its_layers_on_whichever_axis_they_are():
    inner = StoredArray("a", "t", "float32", (4, 2, 3), (2, 1, 3), ("l0", "l1"), 1)
    assert list(inner.placed) == [Chunk((0, 0, 0), "l0", 0, 6), Chunk((1, 0, 0), "l0", 6, 12),
                                  Chunk((0, 1, 0), "l1", 0, 6), Chunk((1, 1, 0), "l1", 6, 12)]  # fmt: skip
    outer = StoredArray("a", "t", "float32", (2, 4, 3), (1, 4, 3), ("l0", "l1"), 0)
    assert list(outer.placed) == [Chunk((0, 0, 0), "l0", 0, 12), Chunk((1, 0, 0), "l1", 0, 12)]
