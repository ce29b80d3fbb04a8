"""Number formats by name: size, spacing, and their values as numpy arrays. No torch here.

A block of bfloat16 travels as numpy uint16 (numpy has no bfloat16); `to_float` widens any stored block to real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrace.errors import PretraceError

FloatName = Literal["float64", "float32", "bfloat16", "float16"]
ComputeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class DType:
    """One number format. `bits` may be below 8 (packed formats); `storage` is the numpy dtype of one stored element."""

    name: str
    bits: int
    storage: str  # numpy dtype string, little-endian; packed formats are stored as bytes
    kind: Literal["float", "int", "uint", "bool", "complex"]
    mantissa_bits: int = 0  # explicit bits of the significand
    min_exponent: int = 0  # exponent of the smallest normal number
    max_value: float = 0.0

    @property
    def itemsize(self) -> int:
        """Bytes of one element; packed formats have none."""
        if self.bits % 8:
            raise PretraceError(f"{self.name} packs {8 // self.bits} elements in a byte", "", "read it as bytes")
        return self.bits // 8

    def size_bytes(self, numel: int) -> int:
        """Bytes that `numel` elements take, packed."""
        return -(-self.bits * numel // 8)


_TABLE = (
    DType("float64", 64, "<f8", "float", 52, -1022, float(np.finfo(np.float64).max)),
    DType("float32", 32, "<f4", "float", 23, -126, float(np.finfo(np.float32).max)),
    DType("float16", 16, "<f2", "float", 10, -14, 65504.0),
    DType("bfloat16", 16, "<u2", "float", 7, -126, 3.3895313892515355e38),
    DType("float8_e4m3fn", 8, "u1", "float", 3, -6, 448.0),
    DType("float8_e5m2", 8, "u1", "float", 2, -14, 57344.0),
    DType("float8_e8m0fnu", 8, "u1", "float", 0, -127, 2.0**127),
    DType("float6_e2m3fn", 6, "u1", "float", 3, 0, 7.5),
    DType("float6_e3m2fn", 6, "u1", "float", 2, -2, 28.0),
    DType("float4_e2m1fn", 4, "u1", "float", 1, 0, 6.0),
    DType("int64", 64, "<i8", "int"),
    DType("int32", 32, "<i4", "int"),
    DType("int16", 16, "<i2", "int"),
    DType("int8", 8, "i1", "int"),
    DType("uint64", 64, "<u8", "uint"),
    DType("uint32", 32, "<u4", "uint"),
    DType("uint16", 16, "<u2", "uint"),
    DType("uint8", 8, "u1", "uint"),
    DType("bool", 8, "u1", "bool"),
    DType("complex64", 64, "<c8", "complex"),
    DType("complex128", 128, "<c16", "complex"),
)
DTYPES = {dtype.name: dtype for dtype in _TABLE}


def dtype(name: str) -> DType:
    """The format called `name` (torch's spelling).

    Raises
    ------
    PretraceError
        If no format has that name.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise PretraceError(f"unknown dtype {name!r}", "", f"use one of: {', '.join(DTYPES)}") from None


def to_float(block: NDArray[Any], name: str) -> NDArray[Any]:
    """The values of a stored block: float32 for the 16-bit floats, the array itself for wider ones.

    Every widening is exact. bfloat16 comes as uint16.
    """
    if name == "bfloat16":
        return (block.astype(np.uint32) << 16).view(np.float32)
    if name == "float16":
        return block.astype(np.float32)
    return block


def from_float32(values: NDArray[np.float32], name: str) -> NDArray[Any]:
    """Rounds float32 values to nearest-even in the named format, as torch's cast does; bfloat16 comes back as uint16."""
    if name == "float32":
        return values
    if name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if name != "bfloat16":
        raise PretraceError(f"no rounding to {name} here", "", "use float32, float16 or bfloat16")
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def ulp(values: NDArray[Any] | float, name: str) -> NDArray[np.float64]:
    """The spacing of the format at |values|: the distance to the next representable number away from zero."""
    fmt = dtype(name)
    magnitude = np.abs(np.asarray(values, dtype=np.float64))
    exponent = np.frexp(magnitude)[1] - 1  # magnitude = m * 2^exponent with 1 <= m < 2
    exponent = np.maximum(np.where(magnitude == 0, fmt.min_exponent, exponent), fmt.min_exponent)
    spacing: NDArray[np.float64] = np.ldexp(1.0, exponent - fmt.mantissa_bits)
    return spacing


def ulp_distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many float32 numbers lie between a and b (0: equal; +0 and -0 are equal; NaN counts as the largest distance)."""
    far = np.iinfo(np.int64).max
    distance = np.abs(_ordered(a) - _ordered(b))
    return np.where(np.isnan(a) | np.isnan(b), far, distance)


def _ordered(values: NDArray[np.float32]) -> NDArray[np.int64]:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def torch_dtype(name: str) -> Any:
    """torch's dtype of that name (imports torch)."""
    import torch

    dtype(name)
    return getattr(torch, name)
