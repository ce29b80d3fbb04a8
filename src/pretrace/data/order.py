"""The order of training as a value: which sample stands at which position, and what it holds.

`open_order(spec)` gives an `Order`: a pure function of the spec. Position 0 is the first sample of training; `Topology` says
which rank reads which positions. Nothing is remembered, so resuming is asking for later positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

import pretrace.data.families as families
from pretrace.batch import IGNORE_INDEX, Batch, from_windows
from pretrace.data.families import PreshuffledOrder, ShuffledEntriesOrder, StreamOrder
from pretrace.data.loaders import LlmcOrder, NanoGPTOrder, OlmoOrder
from pretrace.data.megatron import MegatronOrder
from pretrace.data.neox import NeoxOrder
from pretrace.data.rows import RowsOrder, RowWindows
from pretrace.data.samplers import Sampler
from pretrace.data.sources import TokenSource
from pretrace.data.windows import NO_TOKEN, Span, Windows
from pretrace.errors import PretraceError
from pretrace.spec import Spec

AnyOrder = Annotated[
    NeoxOrder
    | MegatronOrder
    | PreshuffledOrder
    | ShuffledEntriesOrder
    | StreamOrder
    | OlmoOrder
    | LlmcOrder
    | NanoGPTOrder
    | RowsOrder,
    Field(discriminator="family"),
]


class DocumentRules(Spec):
    """What a document's end does inside a sample. `eod_id` None: nothing marks it, the other three are then false."""

    eod_id: int | None  # the id after every document
    mask_after_eod: bool  # the label that follows an input eod_id is not counted (upstream's eod_mask_loss)
    separate_attention: bool  # attention stays within a document (`Batch.segments`)
    restart_positions: bool  # position ids count from 0 in every document


class DataSpec(Spec):
    """Token files, the length of a sample, the order, and the rules at documents' ends."""

    sources: tuple[TokenSource, ...]
    seq_len: PositiveInt
    order: AnyOrder
    documents: DocumentRules


@dataclass(frozen=True, slots=True)
class Order:
    """An opened order. `sampler(positions)` gives sample numbers, `windows` their tokens."""

    spec: DataSpec
    sampler: Sampler
    windows: Windows

    def __len__(self) -> int:
        """Samples that can be asked for: upstream's length of the dataset."""
        return len(self.sampler)

    def sample_ids(self, positions: range) -> NDArray[np.int64]:
        """The samples at `positions`, [len(positions)] int64.

        Raises
        ------
        PretraceError
            If a position is not in 0..len - 1.
        """
        if len(positions) and (min(positions) < 0 or max(positions) >= len(self)):
            raise PretraceError(
                f"positions {positions.start:,}..{positions.stop:,} are asked for, the order has {len(self):,} samples",
                "order", "ask for fewer steps, or declare more samples")  # fmt: skip
        return self.sampler(positions)

    def tokens(self, positions: range) -> NDArray[np.int64]:
        """The places of the samples, [len(positions), seq_len + 1] int64; NO_TOKEN (-1) where there is none."""
        width = self.spec.seq_len + 1
        rows = [self.windows.row(int(i)) for i in self.sample_ids(positions)]
        return np.stack(rows) if rows else np.zeros((0, width), np.int64)

    def batch(self, positions: range) -> Batch:
        """Inputs and labels of the samples at `positions`; labels that the loss does not look at are IGNORE_INDEX."""
        batch = batch_of(self.tokens(positions), self.spec.documents, families.pad_id(self.spec.order))
        if isinstance(self.windows, RowWindows) and isinstance(self.spec.order, RowsOrder) and self.spec.order.by_piece:
            rows = [self.windows.segments(int(i)) for i in self.sample_ids(positions)]
            return _by_piece(batch, np.stack(rows) if rows else np.zeros((0, self.spec.seq_len + 1), np.int32))
        return batch

    def documents(self, position: int) -> tuple[Span, ...]:
        """Which documents the sample at `position` is made of, in order."""
        return self.windows.spans(int(self.sample_ids(range(position, position + 1))[0]))


def open_order(spec: DataSpec) -> Order:
    """Opens the token files, checks them, and builds the order.

    Raises
    ------
    PretraceError
        If a file is missing or damaged, or the order does not fit it.
    """
    rules = spec.documents
    if rules.eod_id is None and (rules.mask_after_eod or rules.separate_attention or rules.restart_positions):
        raise PretraceError("rules at documents' ends are asked for, and no eod_id is declared", "data.documents",
                            "declare eod_id, or switch the rules off")  # fmt: skip
    if not spec.sources:
        raise PretraceError("the data name no token file", "data.sources", "name at least one")
    sampler, windows = families.open_family(spec.order, spec.sources, spec.seq_len)
    return Order(spec, sampler, windows)


def batch_of(rows: NDArray[np.int64], rules: DocumentRules, pad: int | None = None) -> Batch:
    """The batch of whole rows [B, seq_len + 1] under the rules. `pad`: an id that stands for "no token" (Megatron-core)."""
    absent = rows == NO_TOKEN if pad is None else (rows == NO_TOKEN) | (rows == pad)
    plain = from_windows(np.where(absent, 0, rows))
    labels = np.where(absent[:, 1:], IGNORE_INDEX, plain.labels)
    if rules.eod_id is None:
        return Batch(plain.tokens, labels)
    ends = rows[:, :-1] == rules.eod_id
    if rules.mask_after_eod:
        labels = np.where(ends, IGNORE_INDEX, labels)
    segments = _segments(ends)
    return Batch(plain.tokens, labels, segments if rules.separate_attention else None,
                 _positions(segments) if rules.restart_positions else None)  # fmt: skip


def _by_piece(batch: Batch, pieces: NDArray[np.int32]) -> Batch:
    """The batch with attention, positions and labels inside the pieces [B, seq_len + 1]."""
    segments = np.ascontiguousarray(pieces[:, :-1])
    labels = np.where(pieces[:, 1:] != segments, IGNORE_INDEX, batch.labels)
    return Batch(batch.tokens, labels, segments, _positions(segments))


def _segments(ends: NDArray[np.bool_]) -> NDArray[np.int32]:
    # The end mark belongs to the document that it ends.
    counts = np.cumsum(ends, axis=1, dtype=np.int32)
    return np.concatenate([np.zeros((len(ends), 1), np.int32), counts[:, :-1]], axis=1)


def _positions(segments: NDArray[np.int32]) -> NDArray[np.int64]:
    place = np.broadcast_to(np.arange(segments.shape[1], dtype=np.int64), segments.shape)
    fresh = np.diff(segments, axis=1, prepend=-1) != 0
    return place - np.maximum.accumulate(np.where(fresh, place, 0), axis=1)


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """How two orders differ over a number of steps."""

    first_step: int | None  # the first step whose samples differ in content; None if none does
    steps: int  # compared
    equal_batches: float  # share of steps that hold the same tokens at the same places
    equal_sets: float  # share of steps that hold the same samples, in any places
    equal_samples: float  # share of positions that hold the same tokens
    common_samples: float  # share of a's samples that occur anywhere in b's


def first_difference(a: Order, b: Order, global_batch: int, steps: int) -> OrderDifference:
    """Compares what two orders read, by content of the tokens, over the first `steps` updates.

    A step that only one of the orders still has counts as different.

    Raises
    ------
    PretraceError
        If neither order has a whole update: nothing was compared then, which is not the same as no difference.
    """
    left, right = (content_hashes(order, global_batch, steps) for order in (a, b))
    if not len(left) and not len(right):
        what = f"{steps:,} of {global_batch:,} samples are asked for, the orders have {len(a):,} and {len(b):,}"
        raise PretraceError(f"there is no update to compare: {what}", "order", "ask for one update or more that fits")
    return difference_of(left, right, global_batch)


def content_hashes(order: Order, global_batch: int, steps: int) -> NDArray[np.uint64]:
    """A hash of the tokens of every sample of the first `steps` updates, as far as the order reaches; whole updates only."""
    n = min(steps, len(order) // global_batch) * global_batch
    return _hashes(order, range(n))


def difference_of(a: NDArray[np.uint64], b: NDArray[np.uint64], global_batch: int) -> OrderDifference:
    """The difference of two orders whose samples are hashed already: many candidates are hashed once, not in pairs."""
    hashes = (a, b)
    counts = [len(h) // global_batch for h in hashes]
    both = min(counts) * global_batch
    left, right = (h[:both].reshape(-1, global_batch) for h in hashes)
    same = left == right
    batches = same.all(axis=1)
    sets = (np.sort(left, axis=1) == np.sort(right, axis=1)).all(axis=1)
    total = max(*counts, 1)
    differing = np.flatnonzero(~batches)
    first = int(differing[0]) if len(differing) else (min(counts) if counts[0] != counts[1] else None)
    return OrderDifference(
        first_step=first,
        steps=max(counts),
        equal_batches=float(batches.sum()) / total,
        equal_sets=float(sets.sum()) / total,
        equal_samples=float(same.sum()) / (total * global_batch),
        common_samples=float(np.isin(hashes[0], hashes[1]).mean()) if len(hashes[0]) else 0.0,
    )


def _hashes(order: Order, positions: range) -> NDArray[np.uint64]:
    import xxhash

    out = np.empty(len(positions), np.uint64)
    for at, row in enumerate(rows_of(order, positions)):
        out[at] = xxhash.xxh3_64_intdigest(row.tobytes())
    return out


def rows_of(order: Order, positions: range, at_once: int = 1024) -> Iterator[NDArray[Any]]:
    """The rows of many positions, one after another, a block in memory at a time."""
    for first in range(0, len(positions), at_once):
        yield from order.tokens(positions[first : first + at_once])
