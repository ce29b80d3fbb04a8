"""One zarr array: what its metadata says, and the keys and places of its chunks.

Version 2 (`.zarray`) and version 3 (`zarr.json`); `zarr_codec` decodes the chunks.
Formats: zarr-specs v2, v3; bfloat16 as tensorstore and Orbax write it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.links import Link, c_strides, normal
from pretrace.dtypes import DTYPES

_MAX_CHUNKS = 4_000_000
_V2 = {
    "f": {2: "float16", 4: "float32", 8: "float64"},
    "i": {1: "int8", 2: "int16", 4: "int32", 8: "int64"},
    "u": {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"},
    "b": {1: "bool"},
    "c": {8: "complex64", 16: "complex128"},
}


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """Shape, chunks and coding of one array."""

    name: str  # the folder of the array, with `/`
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: str  # 'raw', 'zstd', 'gzip', 'zlib' or 'other'
    big_endian: bool
    order: str  # 'C' or 'F', of the elements in a chunk
    key_form: tuple[str, str]  # what stands before the indices ('c' in version 3), and between them
    metadata: dict[str, Any]  # the JSON, for tensorstore

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks))

    def chunk_keys(self) -> dict[str, tuple[int, ...]]:
        """Key of each chunk -> its index in the grid."""
        return {self.key(index): index for index in itertools.product(*map(range, self.grid))}

    def key(self, index: tuple[int, ...]) -> str:
        """The key of one chunk, below the folder of the array."""
        head, between = self.key_form
        if not index:
            return head or "0"
        return between.join([head] * bool(head) + [str(i) for i in index])

    def link(self, source: str, index: tuple[int, ...]) -> Link:
        """Where the elements of a chunk lie in the array; the part of a chunk past the edge is left out."""
        strides = c_strides(self.shape)
        inner = c_strides(self.chunks) if self.order == "C" else tuple(reversed(c_strides(reversed(self.chunks))))
        starts = tuple(i * c for i, c in zip(index, self.chunks))
        sizes = tuple(min(c, n - s) for c, n, s in zip(self.chunks, self.shape, starts))
        return normal(Link(source, sizes, strides, inner, sum(s * t for s, t in zip(starts, strides))))


def parse_array(name: str, data: Any, where: str) -> ZarrArray:
    """A ZarrArray from the JSON of `.zarray` or `zarr.json`.

    Raises
    ------
    DamagedFile
        If sizes are no counts, or a dtype or key encoding is unknown.
    """
    if not isinstance(data, dict) or data.get("zarr_format") not in (2, 3):
        raise _bad(where, "this is no zarr array of version 2 or 3")
    try:
        array = _version_2(name, data) if data["zarr_format"] == 2 else _version_3(name, data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _bad(where, f"the metadata of the array is not understood ({type(error).__name__}: {error})") from None
    sizes = (*array.shape, *array.chunks)
    if (
        not all(type(n) is int and 0 <= n < 1 << 63 for n in sizes)
        or len(array.chunks) != len(array.shape)
        or 0 in array.chunks
    ):
        raise _bad(where, f"shape {list(array.shape)[:8]} and chunks {list(array.chunks)[:8]} are no sizes")
    if len(array.shape) > 64 or math.prod(array.grid) > _MAX_CHUNKS:
        raise _bad(where, f"more than {_MAX_CHUNKS:,} chunks")
    return array


def _version_2(name: str, data: dict[str, Any]) -> ZarrArray:
    compressor = data.get("compressor")
    codec = "raw" if compressor is None else str(compressor["id"])
    if data.get("filters"):
        codec = "other"
    kind = data["dtype"]
    big = kind[0] == ">"
    named = kind if kind in DTYPES else _V2[kind[1]][int(kind[2:])]
    return ZarrArray(
        name,
        named,
        tuple(data["shape"]),
        tuple(data["chunks"]),
        codec if codec in ("raw", "zstd", "gzip", "zlib") else "other",
        big,
        data.get("order", "C"),
        ("", data.get("dimension_separator", ".")),
        data,
    )


def _version_3(name: str, data: dict[str, Any]) -> ZarrArray:
    codecs = [c["name"] for c in data["codecs"]]
    endian = next(
        (c.get("configuration", {}).get("endian", "little") for c in data["codecs"] if c["name"] == "bytes"), "little"
    )
    simple = codecs in (["bytes"], ["bytes", "zstd"], ["bytes", "gzip"])
    codec = ("raw" if len(codecs) == 1 else codecs[1]) if simple else "other"
    encoding = data.get("chunk_key_encoding", {"name": "default"})
    v2_keys = encoding["name"] == "v2"
    between = encoding.get("configuration", {}).get("separator", "." if v2_keys else "/")
    if data["data_type"] not in DTYPES or between not in (".", "/"):
        raise ValueError(f"data_type {data['data_type']!r}, separator {between!r}")
    return ZarrArray(
        name,
        data["data_type"],
        tuple(data["shape"]),
        tuple(data["chunk_grid"]["configuration"]["chunk_shape"]),
        codec,
        endian == "big",
        "C",
        ("" if v2_keys else "c", between),
        data,
    )


def tensorstore(where: str) -> Any:
    """The tensorstore module.

    Raises
    ------
    PretraceError
        If it is not installed.
    """
    try:
        import tensorstore as module
    except ImportError:
        from pretrace.errors import PretraceError

        raise PretraceError("reading this needs tensorstore", where, "pip install 'pretrace[convert]'") from None
    return module


def _bad(where: str, what: str) -> DamagedFile:
    return DamagedFile("chunks-metadata", what, where, "the metadata is damaged: fetch it again")
