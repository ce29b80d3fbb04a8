"""Held-out loss of texts that were scored token by token: nats a token, bits a byte, by length of document, by position.

Bits a byte compare models with different tokenizers; nats a token do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.documents import Floats, Ints, RollingDocument, TaskDocuments, of_kind
from pretrace.evaluate.intervals import Interval, Ratio, identity, intervals


@dataclass(frozen=True, slots=True)
class LossOf:
    """The loss of one part: tokens [first, last] of a document, or documents of [first, last] tokens (counted from 1)."""

    first: int
    last: int
    n_tokens: int
    n_documents: int
    nats_per_token: Interval
    bits_per_byte: float  # NaN for parts of documents

    @property
    def words(self) -> str:
        """`5 to 8`, or `1`."""
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,} to {self.last:,}"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out loss of one task's texts; intervals by drawing documents again.

    `by_seen`: by how many inputs a token was predicted from (position in its window); `by_position`: by place in its document.
    """

    task: str
    n_tokens: int
    n_bytes: int
    n_documents: int
    nats_per_token: Interval
    bits_per_byte: Interval
    by_length: tuple[LossOf, ...]
    by_position: tuple[LossOf, ...]
    by_seen: tuple[LossOf, ...]


def held_out(task: TaskDocuments) -> HeldOut:
    """The loss of every usable text of the task.

    Raises
    ------
    PretraceError
        If no text was scored token by token.
    """
    documents = [d for d in of_kind(task.documents, RollingDocument) if d.tokens is not None and len(d.tokens)]
    if not documents:
        raise PretraceError(
            f"{task.task} has no text that was scored token by token",
            task.source,
            "score a text with pretrace evaluate",
        )
    nats = [-d.tokens for d in documents if d.tokens is not None]
    sizes = np.array([len(x) for x in nats], dtype=np.float64)
    size_bytes = np.array([len(d.text.encode()) for d in documents], dtype=np.float64)
    sums = np.array([x.sum() for x in nats])
    of_token, of_byte = intervals([Ratio(sums, sizes, identity), Ratio(sums, size_bytes * math.log(2), identity)])
    places = [np.arange(1, len(x) + 1) for x in nats]
    seen = [d.seen for d in documents if d.seen is not None]
    return HeldOut(
        task=task.task,
        n_tokens=int(sizes.sum()),
        n_bytes=int(size_bytes.sum()),
        n_documents=len(documents),
        nats_per_token=of_token,
        bits_per_byte=of_byte,
        by_length=_by_length(sums, sizes, size_bytes),
        by_position=_by_place(nats, places),
        by_seen=_by_place(nats, seen) if len(seen) == len(nats) else (),
    )


def _by_length(sums: Floats, sizes: Floats, size_bytes: Floats) -> tuple[LossOf, ...]:
    found = []
    for first, last in _doublings(int(sizes.max())):
        part = (sizes >= first) & (sizes <= last)
        if part.any():
            (interval,) = intervals([Ratio(sums[part], sizes[part], identity)])
            n_bytes = float(size_bytes[part].sum())
            bits = float(sums[part].sum() / (n_bytes * math.log(2))) if n_bytes else math.nan
            found.append(LossOf(first, last, int(sizes[part].sum()), int(part.sum()), interval, bits))
    return tuple(found)


def _by_place(nats: Sequence[Floats], places: Sequence[Ints]) -> tuple[LossOf, ...]:
    found = []
    for first, last in _doublings(max(int(p.max()) for p in places)):
        parts = [(p >= first) & (p <= last) for p in places]
        counts = np.array([part.sum() for part in parts], dtype=np.float64)
        sums = np.array([float(x[part].sum()) for x, part in zip(nats, parts, strict=True)])
        there = counts > 0
        if there.any():
            (interval,) = intervals([Ratio(sums[there], counts[there], identity)])
            found.append(LossOf(first, last, int(counts.sum()), int(there.sum()), interval, math.nan))
    return tuple(found)


def _doublings(largest: int) -> list[tuple[int, int]]:
    """1, 2, 3-4, 5-8, ... up to `largest`."""
    return [((1 << k >> 1) + 1, min(1 << k, largest)) for k in range(max(largest - 1, 0).bit_length() + 1)]
