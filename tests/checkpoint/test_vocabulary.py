"""Vocabulary padding: rows cut or added, and back."""

import numpy as np
import pytest

from pretrace.checkpoint import ArraysView, read_all, with_rows
from pretrace.errors import PretraceError

VIEW = ArraysView(
    {"embed.weight": np.arange(6, dtype=np.float32).reshape(3, 2), "blocks.0.norm1.weight": np.ones(2, np.float32)}
)


def test_rows_beyond_the_tokenizer_are_cut_and_it_is_said():
    cut = with_rows(VIEW, 2)
    assert read_all(cut, "embed.weight").tolist() == [[0, 1], [2, 3]]
    assert cut.source("embed.weight") == (("embed.weight",), "1 padding rows cut")
    assert read_all(cut, "blocks.0.norm1.weight").tolist() == [1, 1]


@pytest.mark.parametrize("start", range(10))
def test_added_rows_are_zero_wherever_a_block_begins(start):
    tall = with_rows(VIEW, 5)
    dirty = np.full(10 - start, 9, np.float32)
    assert tall.read("embed.weight", start, 10, dirty).tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0][start:]
    assert tall.extents("embed.weight") is None


def test_there_and_back_is_the_same_and_the_same_height_is_no_move():
    assert (read_all(with_rows(with_rows(VIEW, 7), 3), "embed.weight") == read_all(VIEW, "embed.weight")).all()
    assert with_rows(VIEW, 3).source("embed.weight")[1] == ""


def test_no_rows_are_refused():
    with pytest.raises(PretraceError, match="at least one"):
        with_rows(VIEW, 0)
