"""The header of a safetensors file, checked strictly before a byte of data is believed.

Layout: u64 little-endian N, N bytes of JSON, data. An entry is {"dtype", "shape", "data_offsets": [begin, end)} with offsets
relative to the data. A sound file has 8 + N <= size, N <= 100,000,000, every key once, end - begin = bits x elements, and
the sorted ranges cover the data without a gap or an overlap. (safetensors README "Format"; the limit is the reference's.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.json_text import MAX_BYTES, parse
from pretrace.checkpoint.sources import Source, read_bytes
from pretrace.dtypes import dtype

CODES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
    "F4": "float4_e2m1fn", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
NAMES = {ours: theirs for theirs, ours in CODES.items()}
MAX_RANK = 64
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: dtype by our name, shape, and its bytes [begin, end) counted from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(source: Source) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """Entries in the order of their bytes, and `__metadata__`.

    Raises
    ------
    DamagedFile
        With a code `header-...` that says which rule the file breaks, and which tensor breaks it.
    """
    data_start, text = _text(source)
    header = parse(text, source.name)
    if not isinstance(header, dict):
        raise _bad("json", source, "the header is no JSON object")
    about = _about(header.pop("__metadata__", {}), source)
    entries = [_entry(name, value, data_start, source) for name, value in header.items()]
    entries.sort(key=lambda e: (e.begin, e.end))
    _tile(entries, data_start, source)
    return tuple(entries), about


def _text(source: Source) -> tuple[int, bytes]:
    start = read_bytes(source, 0, min(source.size, 64))
    if start.startswith(_LFS):
        raise DamagedFile(
            "header-lfs-pointer", "a Git LFS pointer, not weights", source.name, "fetch the file itself: git lfs pull"
        )
    if source.size < 9:
        raise _bad("short", source, f"{source.size} bytes are no safetensors file", size=source.size)
    n = int.from_bytes(start[:8], "little")
    if n > MAX_BYTES or 8 + n > source.size:
        raise _bad("length", source, f"the header claims {n:,} bytes, the file has {source.size:,}"
                   + (f" (at most {MAX_BYTES:,} are allowed)" if n > MAX_BYTES else ""), claimed=n, size=source.size)  # fmt: skip
    if start[8:9] != b"{":
        raise _bad("start", source, "the header does not start with '{'")
    return 8 + n, read_bytes(source, 8, n)


def _about(value: Any, source: Source) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _bad("metadata", source, "__metadata__ is not a mapping of text to text")
    return value


def _entry(name: str, value: Any, data_start: int, source: Source) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad("entry", source, f"the entry {name!r} has not the keys dtype, shape, data_offsets", tensor=name)
    if value["dtype"] not in CODES:
        raise _bad("dtype", source, f"{name!r} has the unknown dtype {str(value['dtype'])[:40]!r}", tensor=name)
    shape, offsets = value["shape"], value["data_offsets"]
    if not _counts(shape) or len(shape) > MAX_RANK:
        raise _bad("shape", source, f"{name!r} has the shape {str(shape)[:80]}, not a list of sizes", tensor=name)
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad("offsets", source, f"{name!r} has the offsets {str(offsets)[:80]}, not [begin, end]", tensor=name)
    begin, end = data_start + offsets[0], data_start + offsets[1]
    wanted = _size(value["dtype"], shape)
    if end > source.size:
        raise _bad("out-of-file", source, f"{name!r} ends at byte {end:,}, the file at {source.size:,}: it is cut short or lies",
                   tensor=name, end=end, size=source.size)  # fmt: skip
    if wanted != end - begin:
        raise _bad("shape-bytes", source, f"{name!r}: {value['dtype']} {shape} takes {wanted:,} bytes, its range {end - begin:,}",
                   tensor=name, expected=wanted, present=end - begin)  # fmt: skip
    return Entry(name, CODES[value["dtype"]], tuple(shape), begin, end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _size(code: str, shape: list[int]) -> int:
    numel = 1
    for n in shape:
        numel *= n  # Python integers do not overflow; at most 64 axes of 63 bits
    return dtype(CODES[code]).size_bytes(numel)


def _tile(entries: list[Entry], data_start: int, source: Source) -> None:
    at, before = data_start, ""
    for entry in entries:
        if entry.begin < at:
            raise _bad("overlap", source, f"{entry.name!r} and {before!r} share bytes {entry.begin:,} to {min(at, entry.end):,}",
                       tensor=entry.name, other=before)  # fmt: skip
        if entry.begin > at:
            raise _bad("hole", source, f"the bytes {at:,} to {entry.begin:,}, before {entry.name!r}, belong to no tensor",
                       tensor=entry.name, hole=[at, entry.begin])  # fmt: skip
        at, before = entry.end, entry.name
    if at != source.size:
        raise _bad(
            "hole",
            source,
            f"the last {source.size - at:,} bytes, to the end of file, belong to no tensor",
            hole=[at, source.size],
        )


def _bad(rule: str, source: Source, what: str, **evidence: Any) -> DamagedFile:
    where = f"{source.name}: {evidence['tensor']}" if "tensor" in evidence else source.name
    return DamagedFile(
        f"header-{rule}", what, where, "the file is damaged or was written wrongly: fetch or write it again", **evidence
    )
