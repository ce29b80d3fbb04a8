"""Links: what each means by hand, and that the fast engine equals the plain copy for any box and any range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.checkpoint import links
from pretrace.checkpoint.links import Link, box, clip, gather, normal, plain_copy, whole


def reader(arrays):
    def read(name, start, stop, out):
        block = arrays[name][start:stop]
        if out is None:
            return block.copy()
        out[...] = block
        return out

    return read


def gathered(links, arrays, start, stop):
    out = np.full(stop - start, -1, np.int64)
    gather(reader(arrays), links, start, stop, out)
    return out


def test_a_transpose_is_two_axes_with_their_strides_exchanged():
    link = normal(Link("a", (3, 2), (2, 1), (1, 3)))
    assert gathered((link,), {"a": np.array([0, 1, 2, 10, 11, 12])}, 0, 6).tolist() == [0, 10, 1, 11, 2, 12]


def test_axes_that_follow_each_other_on_both_sides_become_one():
    assert normal(Link("a", (2, 1, 5), (5, 99, 1), (5, 7, 1))).sizes == (10,)


def test_a_shard_stands_at_its_offsets():
    links = (box("l", (2, 4), (0, 0), (2, 2)), box("r", (2, 4), (0, 2), (2, 2)))
    arrays = {"l": np.array([1, 2, 5, 6]), "r": np.array([3, 4, 7, 8])}
    assert gathered(links, arrays, 0, 8).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert gathered(links, arrays, 3, 6).tolist() == [4, 5, 6]


def test_an_empty_tensor_has_no_parts():
    assert list(clip(whole("a", (3, 0)), 0, 10)) == []


@st.composite
def a_permuted_box(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    gap = draw(st.integers(0, 3))
    target, source = [0] * len(sizes), [0] * len(sizes)
    step = 1
    for axis in reversed(range(len(sizes))):
        target[axis] = step
        step = step * sizes[axis] + gap
    step = draw(st.integers(1, 2))
    for axis in order:
        source[axis] = step
        step *= sizes[axis]
    offsets = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    return Link("a", tuple(sizes), tuple(target), tuple(source), *offsets)


@given(a_permuted_box(), st.data())
def test_any_range_of_any_box_equals_the_plain_copy(link, data):
    source = np.arange(1000, 1000 + link.source_offset + link.source_span)
    wanted = np.full(link.target_offset + link.target_span + 3, -1)
    plain_copy(link, source, wanted)
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    assert gathered((normal(link),), {"a": source}, start, stop).tolist() == wanted[start:stop].tolist()


@given(a_permuted_box())
def test_a_box_read_run_by_run_equals_the_plain_copy(link):
    """As when a box is large: no gap is read, runs are put in order in memory, rows come in one call where there is one."""
    source = np.arange(1000, 1000 + link.source_offset + link.source_span)
    wanted = np.full(link.target_offset + link.target_span, -1)
    plain_copy(link, source, wanted)

    def rows(name, start, step, width, out):
        for k in range(len(out) // width):
            out[k * width : (k + 1) * width] = source[start + k * step : start + k * step + width]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "_SMALL", 0)
        for more in (None, rows):
            out = np.full(len(wanted), -1)
            gather(reader({"a": source}), (normal(link),), 0, len(wanted), out, more)
            assert out.tolist() == wanted.tolist()


@given(a_permuted_box())
def test_a_link_turned_around_is_its_inverse(link):
    source = np.arange(link.source_offset + link.source_span)
    there = np.full(link.target_offset + link.target_span, -1)
    plain_copy(link, source, there)
    back = np.full(len(source), -1)
    gather(reader({"b": there}), (normal(link).turned("b"),), 0, len(source), back)
    used = back >= 0
    assert used.sum() == link.numel
    assert (back[used] == source[used]).all()


def test_a_wide_transpose_is_read_in_pieces_not_whole(monkeypatch):
    rows, columns = 2000, 500
    source, asked = np.arange(rows * columns), []

    def read(name, start, stop, out):
        asked.append(stop - start)
        return reader({"a": source})(name, start, stop, out)

    link = normal(Link("a", (columns, rows), (rows, 1), (1, columns)))
    out = np.empty(rows * 3, np.int64)
    gather(read, (link,), rows * 7, rows * 10, out)
    assert (out.reshape(3, rows) == source.reshape(rows, columns).T[7:10]).all()
    assert max(asked) <= 1 << 16
