"""The order family of rows: every row of an Arrow data set is a sample, as Hugging Face's Trainer reads them.

Source: accelerate 1.15 (SeedableRandomSampler: torch.randperm of a generator seeded with seed + epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from pretrace.data.draws import permutation_torch
from pretrace.data.foreign import ArrowRows, open_arrow
from pretrace.data.sources import TokenSource
from pretrace.data.windows import NO_TOKEN, Span, Windows
from pretrace.errors import PretraceError
from pretrace.spec import Spec


class RowsOrder(Spec):
    """Rows of an Arrow data set: in order, or by torch.randperm of seed + epoch (Hugging Face's Trainer)."""

    family: Literal["rows"]
    epochs: PositiveInt
    shuffle_seed: NonNegativeInt | None
    pad_id: int | None  # fills short rows; what the mask hides is never counted, whatever its id
    by_piece: (
        bool  # attention and positions stay inside a piece of a packed row, and no label crosses from one to the next
    )
    drop_last: (
        PositiveInt  # an epoch is cut to a multiple of this (the global batch where a trainer drops the last; else 1)
    )


@dataclass(frozen=True, slots=True)
class RowWindows:
    """Row i of an Arrow data set: seq_len inputs, seq_len - 1 targets; what the mask hides has neither."""

    rows: ArrowRows
    seq_len: int
    pad_id: int | None

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, sample: int) -> NDArray[np.int64]:
        """The ids of a row; hidden and missing places hold NO_TOKEN."""
        ids, mask = self.rows.row(sample), self.rows.mask(sample)
        if len(ids) > self.seq_len:
            raise PretraceError(f"row {sample:,} has {len(ids):,} ids, more than seq_len {self.seq_len:,}", self.rows.where,
                                "raise seq_len, or prepare the data again")  # fmt: skip
        if len(ids) < self.seq_len and self.pad_id is None:
            raise PretraceError(f"row {sample:,} has {len(ids):,} ids, fewer than seq_len {self.seq_len:,}", self.rows.where,
                                "declare pad_id")  # fmt: skip
        row = np.full(self.seq_len + 1, NO_TOKEN, np.int64)
        row[: len(ids)] = ids if mask is None else np.where(mask != 0, ids, NO_TOKEN)
        return row

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The pieces of the row, or the row itself where the file does not say them."""
        pieces = self.rows.pieces_of(sample)
        if pieces is None:
            return (Span(0, sample, 0, len(self.rows.row(sample))),)
        return tuple(Span(0, document, start, stop) for document, start, stop in pieces)

    def segments(self, sample: int) -> NDArray[np.int32]:
        """[seq_len + 1] number of the piece that each place belongs to; what follows the last piece is one more."""
        sizes = [span.stop - span.start for span in self.spans(sample)]
        numbers = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        filled = np.full(self.seq_len + 1, len(sizes), np.int32)
        filled[: len(numbers)] = numbers
        return filled


@dataclass(frozen=True, slots=True)
class RowSampler:
    """Position -> row; one permutation an epoch, of one epoch held at a time."""

    order: RowsOrder
    n: int
    _cache: dict[int, NDArray[np.int64]] = field(default_factory=dict, compare=False)

    @property
    def per_epoch(self) -> int:
        """Rows that an epoch serves."""
        return self.n // self.order.drop_last * self.order.drop_last

    def __len__(self) -> int:
        return self.order.epochs * self.per_epoch

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The rows at `positions`."""
        p = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        epoch, inside = np.divmod(p, max(self.per_epoch, 1))
        out = np.empty(len(p), np.int64)
        for e in np.unique(epoch).tolist():
            out[epoch == e] = self._rows(e)[inside[epoch == e]]
        return out

    def _rows(self, epoch: int) -> NDArray[np.int64]:
        if self.order.shuffle_seed is None:
            return np.arange(self.n, dtype=np.int64)
        if epoch not in self._cache:
            self._cache.clear()
            self._cache[epoch] = permutation_torch(self.n, self.order.shuffle_seed + epoch)
        return self._cache[epoch]


def open_rows(order: RowsOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[RowSampler, Windows]:
    """One Arrow data set."""
    if len(sources) != 1 or sources[0].format != "arrow":
        raise PretraceError("the order rows reads one arrow source", "data.sources", "name one saved data set")
    rows = open_arrow(sources[0].path)
    if len(rows) == 0:
        raise PretraceError("the data set has no row", sources[0].path, "prepare it again")
    if order.by_piece and not rows.has_pieces:
        raise PretraceError("the data set has no column `pieces`, by_piece needs it", sources[0].path,
                            "prepare it with `pretrace data prepare`, or set by_piece to false")  # fmt: skip
    return RowSampler(order, len(rows)), RowWindows(rows, seq_len, order.pad_id)
