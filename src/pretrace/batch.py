"""What the data room hands over and the model and step rooms take: one micro-batch as numpy arrays.

Axes: B sequences, T positions (= seq_len).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrace.errors import PretraceError

Int = TypeVar("Int", np.int32, np.int64)

IGNORE_INDEX = -100  # a label that is not counted; torch's and transformers' value


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and labels of one micro-batch; labels are already shifted (labels[b, t] is the token after tokens[b, t])."""

    tokens: NDArray[np.int64]  # [B, T] inputs
    labels: NDArray[np.int64]  # [B, T] next tokens, IGNORE_INDEX where the loss does not look
    segments: NDArray[np.int32] | None = None  # [B, T] document number within the sequence: attention stays inside one
    position_ids: NDArray[np.int64] | None = None  # [B, T] where positions restart at documents
    samples: NDArray[np.int64] | None = None  # [B] positions in the order, where dropout draws by sample

    @property
    def n_positions(self) -> int:
        """All positions, counted by the loss or not."""
        return int(self.labels.size)

    @property
    def n_counted(self) -> int:
        """Labels that the loss looks at."""
        return int((self.labels != IGNORE_INDEX).sum())


def from_windows(windows: NDArray[np.int64]) -> Batch:
    """The batch of whole samples [B, T + 1]: inputs are the first T tokens, labels the last T, all counted."""
    return Batch(np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:]))


def within(batch: Batch, vocab_size: int, where: str) -> Batch:
    """The batch itself, every id of which the model knows.

    Raises
    ------
    PretraceError
        That names an id that is not in 0..vocab_size - 1.
    """
    ids = (batch.tokens, batch.labels[batch.labels != IGNORE_INDEX])
    low, high = (min(int(a.min(initial=0)) for a in ids), max(int(a.max(initial=0)) for a in ids))
    if low < 0 or high >= vocab_size:
        odd = high if high >= vocab_size else low
        raise PretraceError(
            f"token id {odd:,} is not in the model's vocabulary of {vocab_size:,}",
            where,
            "declare model.vocab_size as the tokenizer that made the data has it, or read data of this vocabulary",
        )
    return batch


def concatenate(batches: list[Batch]) -> Batch:
    """One batch of all sequences, in order."""
    return Batch(
        np.concatenate([b.tokens for b in batches]),
        np.concatenate([b.labels for b in batches]),
        _joined([b.segments for b in batches]),
        _joined([b.position_ids for b in batches]),
        _joined([b.samples for b in batches]),
    )


def _joined(parts: list[NDArray[Int] | None]) -> NDArray[Int] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None
