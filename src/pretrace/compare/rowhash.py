"""64-bit hashes of the rows and of the columns of a stored tensor, in one pass: equal content, equal hash, whatever its place.

The hash of a row is the sum of its elements' bits times fixed odd weights, modulo 2^64; that of a column uses the same weights
along the other axis, so the rows of a matrix and the columns of its transpose have the same hashes. Meant for finding
a permutation, not against an adversary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView

Hashes = NDArray[np.uint64]
_ELEMENTS = 1 << 19  # read at once


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Hashes of the rows and of the columns of a tensor seen as a matrix [first axis, the rest]."""

    rows: Hashes
    columns: Hashes


def row_hashes(view: StateView, name: str) -> RowHashes:
    """The hashes of one tensor; a vector is a matrix with one column."""
    info = view.info(name)
    n_rows = info.shape[0] if info.shape else 1
    width = info.numel // n_rows if n_rows else 0
    rows, columns = np.zeros(n_rows, np.uint64), np.zeros(width, np.uint64)
    if not info.numel:
        return RowHashes(rows, columns)
    step = max(1, _ELEMENTS // width)
    across, down = _weights(width), _weights(n_rows)
    for first in range(0, n_rows, step):
        last = min(first + step, n_rows)
        block = view.read(name, first * width, last * width)
        bits = block.view(f"<u{block.dtype.itemsize}").astype(np.uint64).reshape(last - first, width)
        rows[first:last] = bits @ across
        columns += down[first:last] @ bits
    return RowHashes(rows, columns)


@lru_cache(maxsize=8)
def _weights(n: int) -> Hashes:
    # SplitMix64 of the index, made odd: an odd weight loses no bit of the element it multiplies.
    with np.errstate(over="ignore"):
        z = (np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) | np.uint64(1)
