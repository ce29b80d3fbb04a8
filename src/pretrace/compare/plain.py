"""What the block kernels compute, in numpy: the specification, and the path for small inputs.

A tensor is cut into blocks of 65,536 elements, counted from its own start whatever file or shard holds it. Within a block
element e goes to lane e % 16; each lane adds its elements in rising order in float64; the 16 lanes are folded by
halves (8 + 8, 4 + 4, ...). Blocks are put together elsewhere with `math.fsum`, which rounds once. Nothing depends on the
number of threads, the shards or the format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.dtypes import to_float

BLOCK = 65_536
LANES = 16
# Distances between two numbers of a format, in steps of that format: the histogram counts how many lie above each.
ULP_STEPS = (0, 1, 2, 4, 16, 64, 256, 4096)
PAIR_SUMS, PAIR_COUNTS = 5, 3 + len(ULP_STEPS)
TRIPLE_SUMS = 3
SINGLE_SUMS, SINGLE_COUNTS = 5, 3

Reals = NDArray[np.float64]
Counts = NDArray[np.int64]

_WORDS = {"bfloat16": np.int32, "float16": np.int32, "float32": np.int32, "float64": np.int64}
_MASKS = {
    "bfloat16": (0x7F80, 0x7FFF),
    "float16": (0x7C00, 0x7FFF),
    "float32": (0x7F800000, 0x7FFFFFFF),
    "float64": (0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF),
}


def pair(a: NDArray[Any], b: NDArray[Any], dtype: str) -> tuple[Reals, Counts]:
    """Sums and counts over one block of a pair.

    Parameters
    ----------
    a, b : 1-D, the same length (at most BLOCK), as stored (bfloat16 as uint16).

    Returns
    -------
    sums : float64 [5]: a*a, b*b, a*b, (a-b)*(a-b), max|a-b| (NaN left out of the maximum).
    counts : int64 [11]: equal bits; not finite in a; not finite in b; more than 0, 1, 2, 4, ... steps apart.
    """
    x, y = _values(a, dtype), _values(b, dtype)
    with np.errstate(all="ignore"):
        d = x - y
        sums = [*(_lanes(left * right) for left, right in ((x, x), (y, y), (x, y), (d, d))), _largest(np.abs(d))]
    i, j = _bits(a, dtype), _bits(b, dtype)
    distance = _distance(_ordinal(i, dtype), _ordinal(j, dtype))
    counts = [i == j, _nonfinite(i, dtype), _nonfinite(j, dtype), *(distance > step for step in ULP_STEPS)]
    return np.array(sums), np.array([np.count_nonzero(c) for c in counts], dtype=np.int64)


def triple(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], dtype: str) -> Reals:
    """float64 [3]: u*u, v*v, u*v over one block, with u = a - c and v = b - c."""
    x, y, z = (_values(block, dtype) for block in (a, b, c))
    with np.errstate(all="ignore"):
        u, v = x - z, y - z
        return np.array([_lanes(u * u), _lanes(v * v), _lanes(u * v)])


def single(a: NDArray[Any], dtype: str) -> tuple[Reals, Counts]:
    """Sums and counts over one block of one array.

    Returns
    -------
    sums : float64 [5]: a, a*a, max|a|, min a, max a (NaN left out of the extremes).
    counts : int64 [3]: zeros of either sign; not finite; subnormal.
    """
    x, bits = _values(a, dtype), _bits(a, dtype)
    exponent, magnitude = _MASKS[dtype]
    with np.errstate(all="ignore"):
        low, high = -_largest(-x, -np.inf), _largest(x, -np.inf)
        sums = [_lanes(x), _lanes(x * x), _largest(np.abs(x)), low, high]
    zero = (bits & magnitude) == 0
    subnormal = ((bits & exponent) == 0) & ~zero
    counts = (zero, _nonfinite(bits, dtype), subnormal)
    return np.array(sums), np.array([np.count_nonzero(c) for c in counts], dtype=np.int64)


def count_nonfinite(a: NDArray[Any], dtype: str) -> int:
    """How many infinities and NaNs the stored array holds."""
    return int(np.count_nonzero(_nonfinite(_bits(a, dtype), dtype)))


def fold(lanes: Reals) -> Reals:
    """Sums the last axis of 16 lanes by halves: (0+8, 1+9, ...), then (0+4, ...), (0+2, 1+3), (0+1)."""
    with np.errstate(all="ignore"):
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def _lanes(values: Reals) -> float:
    padded = np.zeros((-(-values.size // LANES), LANES))
    padded.reshape(-1)[: values.size] = values
    # Adding along the first axis of a C-ordered array goes row by row: each lane in rising order.
    return float(fold(np.add.reduce(padded, axis=0, initial=0.0)))


def _largest(values: Reals, start: float = 0.0) -> float:
    return float(np.fmax.reduce(values, initial=start))


def _values(block: NDArray[Any], dtype: str) -> Reals:
    with np.errstate(all="ignore"):  # a signalling NaN becomes a quiet one
        values: Reals = to_float(block, dtype).astype(np.float64)
    return values


def _bits(block: NDArray[Any], dtype: str) -> NDArray[Any]:
    unsigned = block.view(f"<u{block.dtype.itemsize}")
    word = _WORDS[dtype]
    return unsigned.astype(word) if unsigned.dtype.itemsize < np.dtype(word).itemsize else unsigned.view(word)


def _nonfinite(bits: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    exponent = _MASKS[dtype][0]
    answer: NDArray[np.bool_] = (bits & exponent) == exponent
    return answer


def _ordinal(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    magnitude = _MASKS[dtype][1]
    size = bits & magnitude
    ordinal: NDArray[Any] = np.where(bits & ~magnitude, -size, size)
    return ordinal


def _distance(i: NDArray[Any], j: NDArray[Any]) -> NDArray[Any]:
    # Two numbers of opposite sign may be up to 2^32 (2^64) steps apart: the difference fits the unsigned word.
    with np.errstate(over="ignore"):
        apart: NDArray[Any] = np.where(i > j, i - j, j - i).view(f"u{i.dtype.itemsize}")
    return apart
