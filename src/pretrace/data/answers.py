"""What an order can be asked: what a step reads, which steps saw a document or a text.

Everything is computed from the order itself: the inverse of a pure function needs no log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.data.order import Order
from pretrace.data.overflow import OverflowWindows
from pretrace.data.rows import RowWindows
from pretrace.data.search import find_text
from pretrace.data.tokenfile import TokenFile
from pretrace.data.tokenizer import Tokenizer
from pretrace.data.windows import NO_TOKEN, EntryWindows, FlatWindows, Joined, Span, StreamWindows, Windows
from pretrace.errors import PretraceError

_BLOCK = 1 << 20
_ROWS = 4096  # of a data set that are searched at a time


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample of a step."""

    position: int
    sample: int
    documents: tuple[Span, ...]
    tokens_sha256: str  # of the seq_len + 1 places as little-endian int64
    text: str | None = None


def show(order: Order, step: int, global_batch: int, tokenizer: Tokenizer | None = None) -> list[Shown]:
    """The samples of the update after `step` updates, in the order of their positions.

    Raises
    ------
    PretraceError
        If the order ends before that step.
    """
    positions = range(step * global_batch, (step + 1) * global_batch)
    samples = order.sample_ids(positions)
    shown = []
    for position, sample in zip(positions, samples.tolist()):
        row = order.windows.row(sample)
        text = None if tokenizer is None else tokenizer.decode(row[row != NO_TOKEN].tolist())
        digest = hashlib.sha256(row.astype("<i8").tobytes()).hexdigest()
        shown.append(Shown(position, sample, order.windows.spans(sample), digest, text))
    return shown


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a document or text was read: positions of the order and their steps, rising."""

    positions: tuple[int, ...]
    steps: tuple[int, ...]


def where_document(
    order: Order, document: int, global_batch: int, source: int = 0, *, updates: int | None = None
) -> Seen:
    """The steps that read any token of a document, among the first `updates` (all whole ones, if None).

    Raises
    ------
    PretraceError
        If there is no such document, or the source does not know its documents.
    """
    return _positions_of(order, samples_with(order.windows, document, source), global_batch, updates)


def where_text(order: Order, text: str, tokenizer: Tokenizer, global_batch: int, *, updates: int | None = None) -> Seen:
    """The steps that read any part of a text, whatever stands around it and however it was cut into tokens.

    Raises
    ------
    PretraceError
        If the text is empty.
    """
    samples: set[int] = set()
    parts = order.windows.parts if isinstance(order.windows, Joined) else (order.windows,)
    firsts = order.windows.firsts if isinstance(order.windows, Joined) else (0,)
    for part, first in zip(parts, firsts):
        samples.update(first + sample for sample in _samples_with_text(part, text, tokenizer))
    return _positions_of(order, np.array(sorted(samples), np.int64), global_batch, updates)


def _samples_with_text(windows: Windows, text: str, tokenizer: Tokenizer) -> Iterator[int]:
    if isinstance(windows, FlatWindows):
        for start, stop in find_text(windows.tokens, text, tokenizer):
            first = max(0, -(-(start - windows.width + 1) // windows.advance))
            yield from range(first, min((stop - 1) // windows.advance, len(windows) - 1) + 1)
    elif isinstance(windows, (StreamWindows, OverflowWindows, EntryWindows)):
        hits = _by_document(windows.file, find_text(windows.file.tokens, text, tokenizer))
        for document, places in hits.items():
            for sample in samples_with(windows, document, 0).tolist():
                if _overlaps(windows.spans(sample), document, places):
                    yield sample
    elif isinstance(windows, RowWindows):
        for first in range(0, len(windows), _ROWS):
            rows = [windows.row(n) for n in range(first, min(first + _ROWS, len(windows)))]
            rows = [row[row != NO_TOKEN] for row in rows]
            ends = np.cumsum([len(row) for row in rows])
            for start, stop in find_text(np.concatenate(rows), text, tokenizer):
                row = int(np.searchsorted(ends, start, side="right"))
                if stop <= ends[row]:  # a text that begins in one row and ends in the next is in neither
                    yield first + row


def _by_document(file: TokenFile, hits: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """The places of a text in each document; one that crosses the end of a document is no text of the corpus."""
    found: dict[int, list[tuple[int, int]]] = {}
    offsets = np.asarray(file.offsets) // file.tokens.dtype.itemsize
    for start, stop in hits:
        document = int(np.searchsorted(offsets, start, side="right")) - 1
        begin = int(offsets[document])
        if stop <= begin + int(file.lengths[document]):
            found.setdefault(document, []).append((start - begin, stop - begin))
    return found


def _overlaps(spans: tuple[Span, ...], document: int, places: list[tuple[int, int]]) -> bool:
    return any(s.document == document and s.start < stop and start < s.stop for s in spans for start, stop in places)


def samples_with(windows: Windows, document: int, source: int) -> NDArray[np.int64]:
    """The samples that hold any token of a document, rising."""
    parts = windows.parts if isinstance(windows, Joined) else (windows,)
    if not 0 <= source < len(parts):
        raise PretraceError(f"there is no source {source}", "--source", f"name one of 0..{len(parts) - 1}")
    first = windows.firsts[source] if isinstance(windows, Joined) else 0
    return first + _samples_of(parts[source], document)


def _samples_of(windows: Windows, document: int) -> NDArray[np.int64]:
    if isinstance(windows, FlatWindows):
        raise PretraceError("a flat file does not know its documents", "data.sources", "ask with --text")
    n = _documents(windows)
    if document < 0 or (n is not None and document >= n):
        raise PretraceError(f"there is no document {document:,}", "--document",
                            "documents count from 0" if n is None else f"name one of 0..{n - 1:,}")  # fmt: skip
    if isinstance(windows, StreamWindows):
        return _stream_samples(windows, document)
    return np.array([n for n in range(len(windows)) if any(s.document == document for s in windows.spans(n))], np.int64)


def _documents(windows: Windows) -> int | None:
    """How many documents there are; None for rows that know the numbers of theirs, but not of those that were dropped."""
    if isinstance(windows, (StreamWindows, OverflowWindows, EntryWindows)):
        return len(windows.file)
    return None if isinstance(windows, RowWindows) and windows.rows.has_pieces else len(windows)


def _stream_samples(windows: StreamWindows, document: int) -> NDArray[np.int64]:
    rows = windows.maps.sample_idx[:, 0]
    found: set[int] = set()
    for slot in np.flatnonzero(windows.maps.doc_idx == document).tolist():
        first = max(0, int(np.searchsorted(rows, slot, side="left")) - 1)
        last = min(int(np.searchsorted(rows, slot, side="right")), len(windows))
        found.update(n for n in range(first, last) if any(s.document == document for s in windows.spans(n)))
    return np.array(sorted(found), np.int64)


def _positions_of(order: Order, samples: NDArray[np.int64], global_batch: int, updates: int | None) -> Seen:
    """Whole updates only: what stands beyond the last one is read by none."""
    whole = len(order) // global_batch if updates is None else updates
    positions: list[int] = []
    for first in range(0, whole * global_batch, _BLOCK):
        block = order.sample_ids(range(first, min(first + _BLOCK, whole * global_batch)))
        positions += (first + np.flatnonzero(np.isin(block, samples))).tolist()
    return Seen(tuple(positions), tuple(sorted({p // global_batch for p in positions})))
