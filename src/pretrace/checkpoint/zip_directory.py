"""The entries of a zip that holds stored bytes only, checked before any of them is believed.

Own reader, because three things matter here that a general one lets pass: an entry must not be compressed (torch writes
stored entries; a deflated one can be a bomb), entries must not overlap or hide behind two headers that disagree, and the
CRC must be checked (torch.load does not). Format: PKWARE APPNOTE 6.3, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import Source, read_bytes

_END, _END64, _LOCATOR64, _CENTRAL, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
_MAX_ENTRIES = 2_000_000
_HEAD = 30  # bytes of a local header before the name
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One stored file. `header` is the byte of its local header."""

    name: str
    size: int
    crc: int
    header: int


class ZipDirectory:
    """The stored files of a zip by name."""

    def __init__(self, source: Source) -> None:
        """Reads the central directory.

        Raises
        ------
        DamagedFile
            Code `zip-...` and the entry.
        """
        self.source = source
        self._data_at: dict[str, int] = {}
        listed = _central(source)
        self.entries: dict[str, ZipEntry] = {}
        for entry in listed:
            if entry.name in self.entries:
                raise bad(
                    source, "two-names", entry.name, "two entries have this name: readers disagree which one counts"
                )
            self.entries[entry.name] = entry
        _refuse_overlap(source, sorted(listed, key=lambda e: e.header))

    def data_at(self, name: str) -> int:
        """The byte of the file where an entry's data starts; checks the local header against the central one."""
        if name not in self._data_at:
            self._data_at[name] = _local(self.source, self.entries[name])
        return self._data_at[name]

    def read(self, name: str, limit: int) -> bytes:
        """All bytes of a small entry, CRC checked."""
        entry = self.entries[name]
        if entry.size > limit:
            raise bad(self.source, "size", name, f"{entry.size:,} bytes, at most {limit:,} are read")
        data = read_bytes(self.source, self.data_at(name), entry.size)
        if zlib.crc32(data) != entry.crc:
            raise self._wrong_crc(entry, zlib.crc32(data))
        return data

    def check(self, name: str) -> None:
        """Reads an entry in blocks and compares its CRC.

        Raises
        ------
        DamagedFile
            With code `crc` if it has other bytes than were written.
        """
        entry, crc, at = self.entries[name], 0, self.data_at(name)
        buffer = memoryview(bytearray(min(_BLOCK, entry.size)))
        for start in range(0, entry.size, _BLOCK):
            block = buffer[: min(_BLOCK, entry.size - start)]
            self.source.read_into(at + start, block)
            crc = zlib.crc32(block, crc)
        if crc != entry.crc:
            raise self._wrong_crc(entry, crc)

    def _wrong_crc(self, entry: ZipEntry, crc: int) -> DamagedFile:
        return DamagedFile(
            "crc",
            f"{_short(entry.name)}: the CRC is {crc:08x}, {entry.crc:08x} was written",
            f"{self.source.name}: {entry.name}",
            "the file is damaged: fetch it again",
            present=f"{crc:08x}",
            expected=f"{entry.crc:08x}",
        )


def bad(source: Source, rule: str, name: str, what: str) -> DamagedFile:
    """The refusal of one entry."""
    return DamagedFile(
        f"zip-{rule}",
        f"{_short(name)}: {what}" if name else what,
        f"{source.name}: {name}" if name else source.name,
        "fetch the file again; do not load it otherwise",
    )


def _short(name: str) -> str:
    return name.split("/", 1)[-1]


def _central(source: Source) -> list[ZipEntry]:
    at, size, count = _end(source)
    if count > _MAX_ENTRIES or at + size > source.size:
        raise bad(source, "directory", "", f"a directory of {count:,} entries and {size:,} bytes does not fit the file")
    data = read_bytes(source, at, size)
    entries: list[ZipEntry] = []
    packed_ones: list[tuple[int, int, ZipEntry]] = []
    p = 0
    try:
        for _ in range(count):
            (magic, flags, method, crc, packed, plain, n, extra, comment, header) = struct.unpack_from(
                "<4s4xHH4xIIIHHH8xI", data, p
            )
            name = data[p + 46 : p + 46 + n].decode("utf-8", "replace")
            if magic != _CENTRAL:
                raise bad(source, "directory", "", f"entry {len(entries)} of the directory has no signature")
            plain, packed, header = _wide(data[p + 46 + n : p + 46 + n + extra], plain, packed, header)
            entry = ZipEntry(name, plain, crc, header)
            if method != 0 or packed != plain:
                packed_ones.append((plain, packed, entry))
            entries.append(_believed(source, entry, flags, packed))
            p += 46 + n + extra + comment
    except struct.error:
        raise bad(source, "directory", "", "the directory is cut short") from None
    if packed_ones:
        plain, packed, worst = max(packed_ones, key=lambda one: one[0])
        what = f"compressed, {packed:,} bytes would become {plain:,}: torch only writes stored entries"
        raise bad(source, "compressed", worst.name, what)
    return entries


def _believed(source: Source, entry: ZipEntry, flags: int, packed: int) -> ZipEntry:
    if flags & 0x2041:  # encrypted in one of three ways
        raise bad(source, "encrypted", entry.name, "encrypted")
    parts = entry.name.split("/")
    if not entry.name or ".." in parts or parts[0] == "" or "\\" in entry.name or "\0" in entry.name:
        raise bad(source, "path", entry.name[:80], "the name leaves the archive")
    if entry.header + _HEAD + packed > source.size:
        raise bad(source, "out-of-file", entry.name, "the entry lies outside of the file")
    return entry


def _end(source: Source) -> tuple[int, int, int]:
    """Start, size and number of entries of the central directory."""
    n = min(source.size, 65557)
    tail = read_bytes(source, source.size - n, n)
    at = tail.rfind(_END)
    if at < 0 or at + 22 > n:
        raise bad(
            source,
            "truncated",
            "",
            f"the end record of the zip is missing: the file is cut short at {source.size:,} bytes",
        )
    count, size, start = struct.unpack_from("<HII", tail, at + 10)
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:
        wide: int = struct.unpack_from("<Q", tail, at - 12)[0]
        record = read_bytes(source, wide, 56)
        if record[:4] != _END64:
            raise bad(source, "directory", "", "the 64-bit end record has no signature")
        count, size, start = struct.unpack_from("<QQQ", record, 32)
    return start, size, count


def _wide(extra: bytes, plain: int, packed: int, header: int) -> tuple[int, int, int]:
    """Fields of 2^32 - 1 stand in the extra record 1, in this order."""
    p = 0
    while p + 4 <= len(extra):
        kind, n = struct.unpack_from("<HH", extra, p)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{n // 8}Q", extra, p + 4))
            plain, packed, header = (next(values, v) if v == 0xFFFFFFFF else v for v in (plain, packed, header))
        p += 4 + n
    return plain, packed, header


def _local(source: Source, entry: ZipEntry) -> int:
    head = read_bytes(source, entry.header, _HEAD)
    magic, flags, method, crc, packed, plain, n, extra = struct.unpack("<4s2xHH4xIIIHH", head)
    name = read_bytes(source, entry.header + _HEAD, n).decode("utf-8", "replace")
    # Bit 3: sizes and CRC come after the data (streamed writers), the local fields are 0 then.
    sizes = flags & 8 or plain == 0xFFFFFFFF or (plain == packed == entry.size and crc == entry.crc)
    if magic != _LOCAL or method != 0 or name != entry.name or not sizes:
        raise bad(source, "headers-disagree", entry.name, "its two headers disagree: readers see different files")
    at: int = entry.header + _HEAD + n + extra
    if at + entry.size > source.size:
        raise bad(source, "out-of-file", entry.name, "the entry lies outside of the file")
    return at


def _refuse_overlap(source: Source, entries: list[ZipEntry]) -> None:
    for entry, following in pairwise(entries):
        if entry.header + _HEAD + len(entry.name.encode()) + entry.size > following.header:
            raise bad(source, "overlap", following.name, f"overlaps {_short(entry.name)}")
