"""Files of torch.save as plans: a zip of stored entries whose data starts at multiples of 64 bytes.

One top folder with `data.pkl` (the object, storages by key), `.format_version` 1, `.storage_alignment` 64, `byteorder`,
`data/<key>` (the raw storages), `version` 3 and `.data/serialization_id`, as torch 2.13 writes them
(torch/serialization.py, caffe2/serialize/inline_container.cc). Each local header carries size and CRC, so the two headers of
an entry agree; sizes and offsets from 4 GiB on stand in zip64 records (PKWARE APPNOTE 6.3, sections 4.3.7, 4.3.12 to 4.3.16).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.layout import RESAVE, Draft, PlannedFile
from pretrace.checkpoint.pickle_globals import STORAGE_NAMES
from pretrace.checkpoint.pickle_writer import Tensor, pickled
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

ALIGNMENT = 64
_WIDE = 0xFFFFFFFF  # in a 32-bit field: the value stands in the zip64 record
_VERSION = 45  # of the zip format: with zip64
_UTF8 = 0x0800


@dataclass(frozen=True, slots=True)
class Run:
    """Elements [start, stop) of a tensor of the sources."""

    tensor: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A raw storage: runs of tensors one after the other, then known bytes (padding, a number)."""

    dtype: str
    runs: tuple[Run, ...]
    literal: bytes = b""

    @property
    def numel(self) -> int:
        """Elements."""
        return sum(run.stop - run.start for run in self.runs) + len(self.literal) // dtype(self.dtype).itemsize


@dataclass(slots=True)
class Storages:
    """The storages of one file while its object is put together: each gets the next number as its key."""

    sources: StateView
    listed: list[Storage]

    @classmethod
    def none(cls, sources: StateView) -> Storages:
        """No storage yet."""
        return cls(sources, [])

    def tensor(self, name: str) -> Tensor:
        """A tensor of the sources with a storage of its own."""
        info = self.sources.info(name)
        return self.over(info.shape, Storage(info.dtype, (Run(name, 0, info.numel),)))

    def scalar(self, value: float) -> Tensor:
        """A float32 tensor without axes (AdamW's `step`)."""
        return self.over((), Storage("float32", (), literal=struct.pack("<f", value)))

    def over(self, shape: tuple[int, ...], storage: Storage) -> Tensor:
        """A tensor over all of a new storage.

        Raises
        ------
        PretraceError
            If torch's files have no storage of this dtype (8-bit floats).
        """
        if storage.dtype not in STORAGE_NAMES:
            name = storage.runs[0].tensor if storage.runs else ""
            raise PretraceError(f"torch's files hold no storage of {storage.dtype}", name, RESAVE)
        self.listed.append(storage)
        return Tensor(str(len(self.listed) - 1), storage.numel, storage.dtype, shape)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    header: int
    begin: int
    end: int
    crc: int | None  # None: of tensors, filled in when they have been written

    @property
    def size(self) -> int:
        return self.end - self.begin


def torch_file(path: str, value: Any, storages: Storages, *, top: str = "archive") -> PlannedFile:
    """A file that torch.load reads as `value`."""
    draft = Draft(path, storages.sources)
    add_zip(draft, value, storages.listed, top)
    return draft.done()


def add_zip(draft: Draft, value: Any, storages: list[Storage], top: str = "archive") -> None:
    """Puts a whole zip behind what the draft holds already; its offsets count from there."""
    base = draft.at
    small: Mapping[str, bytes] = {
        "data.pkl": pickled(value),
        ".format_version": b"1",
        ".storage_alignment": str(ALIGNMENT).encode(),
        "byteorder": b"little",
    }
    entries = [_add_bytes(draft, base, f"{top}/{name}", data) for name, data in small.items()]
    for key, storage in enumerate(storages):
        entries.append(_add_storage(draft, base, f"{top}/data/{key}", storage))
    for name, data in (("version", b"3\n"), (".data/serialization_id", b"0" * 40)):
        entries.append(_add_bytes(draft, base, f"{top}/{name}", data))
    _add_directory(draft, base, entries)


def _add_bytes(draft: Draft, base: int, name: str, data: bytes) -> _Entry:
    crc = zlib.crc32(data)
    header = _local(draft, base, name.encode(), len(data), crc)
    begin = draft.at
    draft.bytes(data)
    return _Entry(name.encode(), header, begin, draft.at, crc)


def _add_storage(draft: Draft, base: int, name: str, storage: Storage) -> _Entry:
    width = dtype(storage.dtype).itemsize
    header = _local(draft, base, name.encode(), storage.numel * width, None)
    begin = draft.at
    for run in storage.runs:
        draft.tensor(run.tensor, run.start, run.stop)
    draft.bytes(storage.literal)
    return _Entry(name.encode(), header, begin, draft.at, None)


def _local(draft: Draft, base: int, name: bytes, size: int, crc: int | None) -> int:
    """The local header, padded so that the data starts at a multiple of 64 bytes of the zip."""
    header = draft.at
    wide = struct.pack("<HHQQ", 1, 16, size, size) if size >= _WIDE else b""
    # The extra field is "FB", a length, and padding, as torch writes it.
    pad = -(draft.at - base + 30 + len(name) + len(wide) + 4) % ALIGNMENT
    extra = wide + b"FB" + struct.pack("<H", pad) + b"Z" * pad
    short = min(size, _WIDE)
    draft.bytes(struct.pack("<4sHHHHH", b"PK\3\4", _VERSION, _UTF8, 0, 0, 0))
    _put_crc(draft, crc, draft.at + 16 + len(name) + len(extra), size)
    draft.bytes(struct.pack("<IIHH", short, short, len(name), len(extra)) + name + extra)
    return header


def _put_crc(draft: Draft, crc: int | None, begin: int, size: int) -> None:
    if crc is None:
        draft.crc(begin, begin + size)
    else:
        draft.bytes(crc.to_bytes(4, "little"))


def _add_directory(draft: Draft, base: int, entries: list[_Entry]) -> None:
    start = draft.at - base
    for entry in entries:
        _central(draft, base, entry)
    size, count, end = draft.at - base - start, len(entries), draft.at - base
    if start >= _WIDE or count >= 0xFFFF or size >= _WIDE:
        draft.bytes(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, _VERSION, _VERSION, 0, 0, count, count, size, start))
        draft.bytes(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
    draft.bytes(
        struct.pack(
            "<4sHHHHIIH",
            b"PK\5\6",
            0,
            0,
            min(count, 0xFFFF),
            min(count, 0xFFFF),
            min(size, _WIDE),
            min(start, _WIDE),
            0,
        )
    )


def _central(draft: Draft, base: int, entry: _Entry) -> None:
    offset = entry.header - base
    # Only the fields that do not fit stand in the record, in this order.
    wide = b"".join(struct.pack("<Q", v) for v in (entry.size, entry.size, offset) if v >= _WIDE)
    extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
    draft.bytes(struct.pack("<4sHHHHHH", b"PK\1\2", _VERSION, _VERSION, _UTF8, 0, 0, 0))
    _put_crc(draft, entry.crc, entry.begin, entry.size)
    size = min(entry.size, _WIDE)
    head = struct.pack("<IIHHHHHII", size, size, len(entry.name), len(extra), 0, 0, 0, 0, min(offset, _WIDE))
    draft.bytes(head + entry.name + extra)
