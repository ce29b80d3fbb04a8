"""Packing plans: small ones by hand, laws for all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.data.packing import PackSpec, best_fit, budget_batches, plan
from pretrace.errors import PretraceError


def spec(strategy="wrap", length=4, shortest=0, budget=None, end="none", pad="none", **more):
    return PackSpec(strategy=strategy, length=length, shortest=None if strategy == "stream" else shortest, budget=budget, end=end,
                    end_id=None if end == "none" else 99, pad=pad, pad_id=None if pad == "none" else 0,
                    pad_rows=2 if pad == "batch" else None, **more)  # fmt: skip


def rows(made):
    """Rows as lists of (document, start, stop, ended)."""
    found = [[] for _ in range(made.n_rows)]
    for d, a, b, e, r in zip(made.document, made.start, made.stop, made.ended, made.row):
        found[r].append((int(d), int(a), int(b), bool(e)))
    return found


def test_long_documents_wrap_and_short_pieces_go():
    made = plan(np.array([9, 2, 4]), spec(shortest=2))
    assert rows(made) == [[(0, 0, 4, False)], [(0, 4, 8, False)], [(1, 0, 2, False)], [(2, 0, 4, False)]]
    assert (made.n_dropped, made.tokens_dropped) == (1, 1)


def test_end_after_a_document_counts_and_can_open_a_piece_of_its_own():
    made = plan(np.array([4, 3]), spec(end="document"))
    assert rows(made) == [[(0, 0, 4, False)], [(0, 4, 4, True)], [(1, 0, 3, True)]]


def test_end_after_every_piece_takes_a_place_in_each():
    made = plan(np.array([5]), spec(end="piece"))
    assert rows(made) == [[(0, 0, 3, True)], [(0, 3, 5, True)]]


def test_stream_cuts_anywhere_and_drops_the_tail():
    made = plan(np.array([3, 0, 4, 2]), spec("stream", end="document"))
    assert rows(made) == [[(0, 0, 3, True)], [(2, 0, 4, False)], [(2, 4, 4, True), (3, 0, 2, True)]]
    assert made.tokens_dropped == 0
    assert plan(np.array([3, 3]), spec("stream")).tokens_dropped == 2


def test_best_fit_fills_the_fullest_row():
    assert best_fit(np.array([3, 5, 2, 4]), 6).tolist() == [2, 0, 1, 1]
    made = plan(np.array([3, 1, 2, 4]), spec("best_fit"))
    assert rows(made) == [[(3, 0, 4, False)], [(0, 0, 3, False), (1, 0, 1, False)], [(2, 0, 2, False)]]


def best_fit_plain(lengths, capacity):
    room, found = [], [0] * len(lengths)
    ages = []  # order in which rows came to their present room
    for piece in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = [r for r in range(len(room)) if room[r] >= lengths[piece]]
        if fits:
            row = min(fits, key=lambda r: (room[r], ages[r]))
        else:
            room.append(capacity)
            ages.append(0)
            row = len(room) - 1
        room[row] -= lengths[piece]
        ages[row] = max(ages, default=0) + 1
        found[piece] = row
    return found


@given(st.lists(st.integers(1, 20), max_size=60))
def test_best_fit_is_its_plain_rule(lengths):
    assert best_fit(np.array(lengths, np.int64), 20).tolist() == best_fit_plain(lengths, 20)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    length=st.integers(2, 12),
    shortest=st.integers(0, 5),
    strategy=st.sampled_from(["wrap", "stream", "best_fit", "budget"]),
    end=st.sampled_from(["none", "document", "piece"]),
)
@settings(max_examples=300, deadline=None)
def test_no_token_is_lost_or_read_twice(lengths, length, shortest, strategy, end):
    if strategy == "stream" and end == "piece":
        return
    made = plan(np.array(lengths), spec(strategy, length, shortest, length * 3 if strategy == "budget" else None, end))
    seen = [(d, t) for row in rows(made) for d, a, b, _ in row for t in range(a, b)]
    assert len(seen) == len(set(seen))
    marks = 0 if end == "none" else sum(e for row in rows(made) for *_, e in row)
    assert made.row_lengths().max(initial=0) <= length
    if end != "piece":
        expected = sum(lengths) + (sum(n > 0 for n in lengths) if end == "document" else 0)
        assert len(seen) + marks + made.tokens_dropped == expected
    if strategy == "stream":
        assert (made.row_lengths() == length).all()
    assert made.row.tolist() == sorted(made.row.tolist())


@given(st.lists(st.integers(1, 10), min_size=1, max_size=50), st.integers(10, 40))
def test_batches_keep_the_budget_and_could_not_take_one_more(lengths, budget):
    batch = budget_batches(np.array(lengths), budget).tolist()
    groups = [[n for n, b in zip(lengths, batch) if b == k] for k in range(batch[-1] + 1)]
    assert [n for group in groups for n in group] == lengths
    for now, following in zip(groups, [*groups[1:], None]):
        assert len(now) * max(now) <= budget
        if following:
            assert (len(now) + 1) * max(*now, following[0]) > budget


@pytest.mark.parametrize("wrong", [{"end_id": 5}, {"pad": "length"}, {"pad_rows": 3}, {"budget": 8}, {"shortest": None},
                                   {"strategy": "stream"}, {"strategy": "budget", "budget": 3}])  # fmt: skip
def test_contradicting_specs_are_refused(wrong):
    with pytest.raises(PretraceError, match="does not fit"):
        plan(np.array([5]), spec().model_copy(update=wrong))
