"""How much of every update was read before: token by token, in whatever pass over the corpus.

A sample's tokens are counted without the one that it shares with the next sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.data.order import Order
from pretrace.data.windows import Joined, StreamWindows
from pretrace.errors import PretraceError

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Repeats:
    """Per update: the share of its tokens that an earlier update read."""

    share: NDArray[np.float64]  # [updates]
    first_step: int | None  # the first update that reads any token again


def repeat_curve(order: Order, global_batch: int, updates: int | None = None, *, plain: bool = False) -> Repeats:
    """How much of every update was read before. With joint shuffling there is no single step at which a second pass begins.

    Raises
    ------
    PretraceError
        If the order is not one of documents in a stream.
    """
    updates = len(order) // global_batch if updates is None else updates
    samples = order.sample_ids(range(updates * global_batch))
    steps = np.arange(len(samples), dtype=np.int64) // global_batch
    tokens, repeated = np.zeros(updates, np.int64), np.zeros(updates, np.int64)
    for first, windows in _parts(order):
        here = (samples >= first) & (samples < first + len(windows))
        (_count_plain if plain else _count)(windows, samples[here] - first, steps[here], tokens, repeated)
    seen = np.flatnonzero(repeated)
    return Repeats(repeated / np.maximum(tokens, 1), int(seen[0]) if len(seen) else None)


def _parts(order: Order) -> Iterator[tuple[int, StreamWindows]]:
    windows = order.windows
    parts = zip(windows.firsts, windows.parts) if isinstance(windows, Joined) else [(0, windows)]
    for first, part in parts:
        if not isinstance(part, StreamWindows):
            raise PretraceError("repeats are counted where the tokens of a document stand, this order does not know that",
                                "data.order", "use a neox, megatron or stream order")  # fmt: skip
        yield first, part


def _count(windows: StreamWindows, samples: Any, steps: Any, tokens: Any, repeated: Any) -> None:
    """Adds the tokens of every update, and those that an earlier one read, of one source."""
    from pretrace.data.kernels import repeats

    maps, lengths, size = windows.maps, np.asarray(windows.file.lengths), windows.seq_len
    total = int(lengths[maps.doc_idx].sum(dtype=np.int64))
    step_of = np.full(total // size + 1, NEVER, np.int64)  # by sample; what is in none of them is never read
    np.minimum.at(step_of, samples, steps)
    repeats(maps.doc_idx, lengths, size, step_of, tokens, repeated)
    again = steps > step_of[samples]  # a blend of NeoX can read a sample twice
    widths = np.minimum(size, total - samples[again] * size)
    np.add.at(tokens, steps[again], widths)
    np.add.at(repeated, steps[again], widths)


def _count_plain(windows: StreamWindows, samples: Any, steps: Any, tokens: Any, repeated: Any) -> None:
    """The same, by remembering every token that was read: (document, place in it) -> first step."""
    lengths, size = windows.file.lengths, windows.seq_len
    stream = [(int(d), place) for d in windows.maps.doc_idx for place in range(int(lengths[d]))]
    first: dict[tuple[int, int], int] = {}
    for sample, step in zip(samples.tolist(), steps.tolist()):
        for token in stream[sample * size : (sample + 1) * size]:
            tokens[step] += 1
            repeated[step] += first.setdefault(token, step) < step
