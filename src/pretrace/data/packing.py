"""Packing as a plan: which tokens of which document stand in which row. Lengths in, pieces out; no token is read here.

Strategies
- `wrap`: long documents are cut every `length` tokens; a piece is a row; pieces shorter than `shortest` are dropped (the usual
  Hugging Face recipe: truncation with overflow, then a filter on the mask's sum).
- `stream`: documents one after another, cut every `length` tokens; the tail that fills no row is dropped.
- `best_fit`: pieces as in `wrap`, the longest first, each into the fullest row that still has room.
- `budget`: rows as in `wrap`, unpadded, grouped in order into batches of at most `budget` places (rows x longest row).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from pretrace.errors import PretraceError
from pretrace.spec import Spec

Ints = NDArray[np.int64]


class PackSpec(Spec):
    """How documents become rows. Keys that a strategy does not use are None."""

    strategy: Literal["wrap", "stream", "best_fit", "budget"]
    length: PositiveInt  # tokens of a row at most
    shortest: NonNegativeInt | None  # wrap, best_fit, budget: shorter pieces are dropped; 0 drops none
    budget: PositiveInt | None  # budget: places of a batch at most
    end: Literal["none", "document", "piece"]  # where end_id is put: nowhere, after a document, after every piece
    end_id: NonNegativeInt | None
    pad: Literal["none", "length", "batch"]  # fill rows up to `length`, or to the longest of each `pad_rows` documents
    pad_id: NonNegativeInt | None
    pad_rows: PositiveInt | None  # documents of one map batch (1,000 in `datasets`)


@dataclass(frozen=True, slots=True)
class Plan:
    """Pieces in row order. A piece is tokens [start, stop) of `document`, then end_id if `ended`."""

    document: Ints  # [pieces]
    start: Ints
    stop: Ints
    ended: NDArray[np.bool_]
    row: Ints  # [pieces] row of each piece, rising
    batch: Ints | None  # [rows] batch of each row, rising (strategy budget)
    n_rows: int
    n_dropped: int  # pieces
    tokens_dropped: int

    @property
    def length(self) -> Ints:
        """Tokens of each piece, its end mark included."""
        return self.stop - self.start + self.ended

    def row_lengths(self) -> Ints:
        """Real tokens of each row."""
        found: Ints = np.bincount(self.row, self.length, self.n_rows).astype(np.int64)
        return found


def plan(lengths: NDArray[np.int32], spec: PackSpec, documents: Ints | None = None) -> Plan:
    """Plans the rows of `documents` (all, in order, if None).

    Raises
    ------
    PretraceError
        If the spec contradicts itself.
    """
    _check(spec)
    chosen = np.arange(len(lengths), dtype=np.int64) if documents is None else documents
    sizes = np.asarray(lengths)[chosen].astype(np.int64)
    if spec.strategy == "stream":
        return _stream(chosen, sizes, spec)
    return _rows_of_pieces(_cut(chosen, sizes, spec), spec)


def _check(spec: PackSpec) -> None:
    def need(condition: bool, key: str, why: str) -> None:
        if not condition:
            raise PretraceError(f"pack.{key} does not fit: {why}", f"pack.{key}", "correct the spec")

    need((spec.end == "none") == (spec.end_id is None), "end_id", "it is declared exactly when an end is put")
    need((spec.pad == "none") == (spec.pad_id is None), "pad_id", "it is declared exactly when rows are filled up")
    need((spec.pad == "batch") == (spec.pad_rows is not None), "pad_rows", "it belongs to pad: batch")
    need(spec.pad != "batch" or spec.strategy == "wrap", "pad", "padding by map batch belongs to wrap")
    need((spec.strategy == "stream") == (spec.shortest is None), "shortest", "every strategy but stream needs it")
    need(spec.strategy != "stream" or spec.end != "piece", "end", "a stream is cut anywhere: it ends documents only")
    need((spec.strategy == "budget") == (spec.budget is not None), "budget", "it belongs to the strategy budget")
    need(spec.budget is None or spec.budget >= spec.length, "budget", "a batch must hold one row")
    need(spec.strategy != "budget" or spec.pad == "none", "pad", "batches by budget are filled up when they are read")
    need(spec.length > (spec.end != "none"), "length", "a row must hold a token beside the end")


def _cut(documents: Ints, sizes: Ints, spec: PackSpec) -> Plan:
    """Every document cut into pieces of `length`; the end mark counts."""
    marks = int(spec.end == "document")
    room = spec.length - int(spec.end == "piece")
    counts = -(-(sizes + marks * (sizes > 0)) // room)
    owner = np.repeat(np.arange(len(documents)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = number * room
    stop = np.minimum(start + room, sizes[owner])
    last = number == counts[owner] - 1
    ended = np.full(len(owner), True) if spec.end == "piece" else last & bool(marks)
    start = np.minimum(start, stop)  # a piece may hold the end mark alone
    keep = stop - start + ended >= max(spec.shortest or 0, 1)
    lost = int((stop - start + ended)[~keep].sum())
    row = np.arange(int(keep.sum()))
    return Plan(
        documents[owner][keep], start[keep], stop[keep], ended[keep], row, None, len(row), int((~keep).sum()), lost
    )


def _rows_of_pieces(pieces: Plan, spec: PackSpec) -> Plan:
    if spec.strategy == "best_fit":
        rows = best_fit(pieces.length, spec.length)
        order = np.argsort(rows, kind="stable")
        return Plan(pieces.document[order], pieces.start[order], pieces.stop[order], pieces.ended[order], rows[order], None,
                    int(rows.max(initial=-1)) + 1, pieces.n_dropped, pieces.tokens_dropped)  # fmt: skip
    if spec.strategy == "budget":
        batch = budget_batches(pieces.length, spec.budget or 0)
        return Plan(pieces.document, pieces.start, pieces.stop, pieces.ended, pieces.row, batch, pieces.n_rows,
                    pieces.n_dropped, pieces.tokens_dropped)  # fmt: skip
    return pieces


def best_fit(lengths: Ints, capacity: int) -> Ints:
    """The row of each piece: longest first (equal ones in order), into the fullest row with room, the oldest of equals.

    >>> best_fit(np.array([3, 5, 2, 4]), 6).tolist()
    [2, 0, 1, 1]
    """
    rows = np.empty(len(lengths), np.int64)
    by_room: list[deque[int]] = [deque() for _ in range(capacity + 1)]
    rooms = 0  # bit r is set if a row has room for exactly r more tokens
    opened = 0
    for piece in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[piece])
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].popleft()
            if not by_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row, opened = capacity, opened, opened + 1
        rows[piece] = row
        if room > size:
            by_room[room - size].append(row)
            rooms |= 1 << (room - size)
    return rows


def budget_batches(lengths: Ints, budget: int) -> Ints:
    """The batch of each row, in order: a batch is closed when one more row would pass rows x longest > budget.

    >>> budget_batches(np.array([4, 4, 6, 2]), 12).tolist()
    [0, 0, 1, 1]
    """
    batch = np.empty(len(lengths), np.int64)
    number = count = longest = 0
    for row, size in enumerate(lengths.tolist()):
        longest, count = max(longest, size), count + 1
        if count * longest > budget:
            number, count, longest = number + 1, 1, size
        batch[row] = number
    return batch


def _stream(documents: Ints, sizes: Ints, spec: PackSpec) -> Plan:
    """The stream cut into rows: a piece ends where its document or its row ends."""
    marks = (sizes > 0) & (spec.end == "document")
    ends = np.cumsum(sizes + marks)
    total = int(ends[-1]) if len(ends) else 0
    n_rows = total // spec.length
    used = n_rows * spec.length
    cuts = np.unique(np.concatenate([[0], np.arange(0, used + 1, spec.length), ends[ends < used]]))
    first, last = cuts[:-1], cuts[1:]
    owner = np.searchsorted(ends, first, side="right")
    base = ends[owner] - (sizes + marks)[owner]
    start = first - base
    ended = marks[owner] & (last == ends[owner])
    stop = last - base - ended
    return Plan(documents[owner], start, stop, ended, first // spec.length, None, n_rows, 0, total - used)
