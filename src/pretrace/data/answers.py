"""What an order can be asked: what a step reads, which steps saw a document or a text, how much of a step was seen before.

Everything is computed from the order itself: the inverse of a pure function needs no log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.data.order import Order
from pretrace.data.overflow import OverflowWindows
from pretrace.data.samplers import Listed
from pretrace.data.tokenizer import Tokenizer
from pretrace.data.windows import NO_TOKEN, EntryWindows, FlatWindows, Joined, Span, StreamWindows, Windows
from pretrace.errors import PretraceError

_BLOCK = 1 << 20


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


def where_document(order: Order, document: int, global_batch: int, source: int = 0) -> Seen:
    """The steps that read any token of a document.

    Raises
    ------
    PretraceError
        If there is no such document, or the source does not know its documents.
    """
    return _positions_of(order, samples_with(order.windows, document, source), global_batch)


def where_text(order: Order, text: str, tokenizer: Tokenizer, global_batch: int) -> Seen:
    """The steps that read a text, whatever stands around it.

    Tokens at both ends of a text depend on what surrounds it, so the inner ids are searched, and every hit is decoded.

    Raises
    ------
    PretraceError
        If the text is too short to have inner tokens.
    """
    samples: set[int] = set()
    parts = order.windows.parts if isinstance(order.windows, Joined) else (order.windows,)
    firsts = order.windows.firsts if isinstance(order.windows, Joined) else (0,)
    for part, first in zip(parts, firsts):
        samples.update(first + sample for sample in _samples_with_text(part, text, tokenizer))
    return _positions_of(order, np.array(sorted(samples), np.int64), global_batch)


def _samples_with_text(windows: Windows, text: str, tokenizer: Tokenizer) -> Iterator[int]:
    tokens = (
        windows.tokens if isinstance(windows, FlatWindows) else getattr(getattr(windows, "file", None), "tokens", None)
    )
    if tokens is None:
        raise PretraceError("this order reads rows, a text is searched in token files", "data.sources", "search the source of "
                            "the rows, then ask where its document is")  # fmt: skip
    for start, stop in find_text(tokens, text, tokenizer):
        if isinstance(windows, (StreamWindows, OverflowWindows)):
            document = int(np.searchsorted(windows.file.offsets, start * tokens.itemsize, side="right")) - 1
            at = start - windows.file.start(document)
            for sample in samples_with(windows, document, 0).tolist():
                if any(
                    s.document == document and s.start < at + stop - start and at < s.stop
                    for s in windows.spans(sample)
                ):
                    yield sample
        elif isinstance(windows, FlatWindows):
            first = max(0, -(-(start - windows.width + 1) // windows.advance))
            yield from range(first, min((stop - 1) // windows.advance, len(windows) - 1) + 1)
        elif isinstance(windows, EntryWindows):
            yield int(np.searchsorted(windows.file.offsets, start * tokens.itemsize, side="right")) - 1


def find_text(tokens: NDArray[Any], text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Where a text stands in a flat array of ids: [start, stop) of ids whose decoding holds it.

    Raises
    ------
    PretraceError
        If the text has fewer than four tokens.
    """
    ids = tokenizer.encode(text)
    if len(ids) < 4:
        raise PretraceError(
            f"{text!r} has {len(ids)} tokens, too few to be searched for", "--text", "give a longer text"
        )
    core = ids[1:-1]
    found = []
    for at in _occurrences(tokens, core):
        start, stop = max(0, at - 3), min(len(tokens), at + len(core) + 3)
        if text in tokenizer.decode(tokens[start:stop].tolist()):
            found.append((max(0, at - 1), min(len(tokens), at + len(core) + 1)))
    return found


def _occurrences(tokens: NDArray[Any], core: NDArray[np.int64]) -> Iterator[int]:
    for first in range(0, len(tokens) - len(core) + 1, _BLOCK):
        block = tokens[first : first + _BLOCK + len(core) - 1]
        hits = np.flatnonzero(block[: len(block) - len(core) + 1] == core[0])
        for k in range(1, len(core)):
            if not len(hits):
                break
            hits = hits[block[hits + k] == core[k]]
        yield from (first + hits).tolist()


def samples_with(windows: Windows, document: int, source: int) -> NDArray[np.int64]:
    """The samples that hold any token of a document, rising."""
    if isinstance(windows, Joined):
        if not 0 <= source < len(windows.parts):
            raise PretraceError(f"there is no source {source}", "--source", f"name one of 0..{len(windows.parts) - 1}")
        return windows.firsts[source] + samples_with(windows.parts[source], document, 0)
    if isinstance(windows, StreamWindows):
        return _stream_samples(windows, document)
    if isinstance(windows, FlatWindows):
        raise PretraceError("a flat file does not know its documents", "data.sources", "ask with --text")
    found = [n for n in range(len(windows)) if any(s.document == document for s in windows.spans(n))]
    if not found and not 0 <= document < len(windows):
        raise PretraceError(f"there is no document {document:,}", "--document", f"name one of 0..{len(windows) - 1:,}")
    return np.array(found, np.int64)


def _stream_samples(windows: StreamWindows, document: int) -> NDArray[np.int64]:
    if not 0 <= document < len(windows.file):
        raise PretraceError(
            f"there is no document {document:,}", "--document", f"name one of 0..{len(windows.file) - 1:,}"
        )
    rows = windows.maps.sample_idx[:, 0]
    found: set[int] = set()
    for slot in np.flatnonzero(windows.maps.doc_idx == document).tolist():
        first = max(0, int(np.searchsorted(rows, slot, side="left")) - 1)
        last = min(int(np.searchsorted(rows, slot, side="right")), len(windows))
        found.update(n for n in range(first, last) if any(s.document == document for s in windows.spans(n)))
    return np.array(sorted(found), np.int64)


def _positions_of(order: Order, samples: NDArray[np.int64], global_batch: int) -> Seen:
    positions: list[int] = []
    for first in range(0, len(order), _BLOCK):
        block = order.sample_ids(range(first, min(first + _BLOCK, len(order))))
        positions += (first + np.flatnonzero(np.isin(block, samples))).tolist()
    return Seen(tuple(positions), tuple(sorted({p // global_batch for p in positions})))


@dataclass(frozen=True, slots=True)
class Repeats:
    """Per step: share of its tokens whose document was read before in another pass over the corpus."""

    share: NDArray[np.float64]  # [steps]
    first_step: int | None  # the first step that reads any document for a second time


def repeat_curve(order: Order, global_batch: int, *, plain: bool = False) -> Repeats:
    """How much of every step was seen before. With joint shuffling there is no single step at which a second pass begins.

    Raises
    ------
    PretraceError
        If the order is not one of documents in a stream.
    """
    windows = order.windows
    if not isinstance(windows, StreamWindows) or not isinstance(order.sampler, Listed):
        raise PretraceError("repeats are counted by document, this order does not know them", "data.order",
                            "use a neox, megatron or stream order of one source")  # fmt: skip
    steps = len(order) // global_batch
    samples = order.sample_ids(range(steps * global_batch)).reshape(steps, global_batch)
    first_slot = np.full(len(windows.file), -1, np.int64)
    tokens, repeated = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    count = _repeats_plain if plain else _repeats_fast()
    count(windows.maps.sample_idx, windows.maps.doc_idx, np.asarray(windows.file.lengths), samples, first_slot,
          np.zeros(len(windows.file), np.bool_), tokens, repeated)  # fmt: skip
    share = repeated / np.maximum(tokens, 1)
    seen = np.flatnonzero(repeated)
    return Repeats(share, int(seen[0]) if len(seen) else None)


def _repeats_fast() -> Any:
    from pretrace.data.kernels import repeats

    return repeats


def _repeats_plain(
    sample_idx: Any, doc_idx: Any, lengths: Any, samples: Any, first_slot: Any, many: Any, tokens: Any, repeated: Any
) -> None:
    """For every step: its tokens, and those of documents that an earlier step read in another slot of doc_idx."""
    for step in range(len(samples)):
        touched: list[tuple[int, int]] = []
        for sample in samples[step]:
            (slot, offset), (last, end) = sample_idx[sample], sample_idx[sample + 1]
            while slot <= last:
                document = doc_idx[slot]
                n = (end if slot == last else lengths[document]) - offset
                tokens[step] += n
                if many[document] or (first_slot[document] >= 0 and first_slot[document] != slot):
                    repeated[step] += n
                touched.append((document, slot))
                slot, offset = slot + 1, 0
        for document, slot in touched:  # what a step itself holds is not "before"
            many[document] |= first_slot[document] >= 0 and first_slot[document] != slot
            if first_slot[document] < 0:
                first_slot[document] = slot
