"""Values that are computed on the way: in float64, rounded once, a piece that fits the cache at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.dtypes import dtype, from_float32, to_float

_PART = 1 << 16  # elements; the intermediate values of a whole block would take ten times its bytes


def computed(
    block: NDArray[Any], stored: str, made: str, scale: float, plus: float, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """value * scale + plus of a stored block, in the stored form of the dtype `made`.

    `out`, if given, is filled and returned; it may be the block itself where both dtypes are one.
    """
    if out is None:
        out = np.empty(block.size, dtype(made).storage)
    same = scale == 1.0 and plus == 0.0  # a zero keeps its sign
    # Overflow to infinity is a finding of a report, not a warning on the console.
    with np.errstate(over="ignore"):
        for start in range(0, block.size, _PART):
            part = to_float(block[start : start + _PART], stored).astype(np.float64)
            out[start : start + _PART] = rounded(part if same else part * scale + plus, made)
    return out


def rounded(values: NDArray[np.float64], name: str) -> NDArray[Any]:
    """float64 values in the stored form of a floating dtype.

    16-bit formats are rounded through float32 with the odd bit set where that was inexact, so the result is rounded once.
    """
    if name == "float64":
        return values
    if name == "float32":
        return values.astype(np.float32)
    single = values.astype(np.float32)
    inexact = (single.astype(np.float64) != values) & np.isfinite(single)
    if not inexact.any():  # a power of two, usually
        return from_float32(single, name)
    bits = single.view(np.uint32)
    # Round to odd: towards zero, then the last bit set. (Boldo and Melquiond, 2008: then a second rounding is harmless.)
    too_far = inexact & (np.abs(single.astype(np.float64)) > np.abs(values))
    odd = np.where(inexact, (bits - too_far.astype(np.uint32)) | np.uint32(1), bits).astype(np.uint32)
    return from_float32(odd.view(np.float32), name)
