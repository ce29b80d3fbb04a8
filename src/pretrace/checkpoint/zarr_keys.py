"""Where zarr keeps its keys: files of a folder, or the entries of an OCDBT database (read by tensorstore)."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import Folder, Source, plain, read_bytes
from pretrace.checkpoint.zarr_array import tensorstore

MAX_VALUE = 1 << 34  # bytes of a value that is read as a whole
_OPEN = 64  # files that are kept open
_PIECE = 1 << 18  # bytes of a value of a database that are read at a time
_NODES = 8 << 20  # bytes of the tree of a database that tensorstore keeps


class Keys(Protocol):
    """Named byte strings."""

    @property
    def name(self) -> str:
        """Path or address."""

    def listed(self) -> frozenset[str]:
        """All keys, with `/`."""

    def read(self, key: str) -> bytes:
        """The value of a key that is there."""

    def stream(self, key: str) -> io.RawIOBase:
        """The value from the beginning to the end, little of it in memory."""

    def file(self, key: str) -> Source | None:
        """The value as a file of which any range can be read; None where only streams are."""

    def close(self) -> None:
        """Closes the files."""


class FileKeys:
    """Each key is a file of a folder; the newest are kept open. One that falls out is closed when nobody reads it any more."""

    def __init__(self, folder: Folder) -> None:
        self.name = folder.name
        self._folder = folder
        self._listed = frozenset(folder.sizes())
        self._open: OrderedDict[str, Source] = OrderedDict()
        self._lock = threading.Lock()

    def listed(self) -> frozenset[str]:
        """All files."""
        return self._listed

    def file(self, key: str) -> Source:
        """A file, opened or kept."""
        with self._lock:
            if key not in self._open:
                self._open[key] = self._folder.open(plain(key, self.name))
                while len(self._open) > _OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return self._open[key]

    def read(self, key: str) -> bytes:
        """A file's bytes."""
        source = self.file(key)
        return read_bytes(source, 0, min(source.size, MAX_VALUE))

    def stream(self, key: str) -> io.RawIOBase:
        """A file's bytes one after the other."""
        return _FileStream(self.file(key))

    def close(self) -> None:
        """Closes what is open."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class _FileStream(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = min(len(buffer), self._source.size - self._at)
        self._source.read_into(self._at, memoryview(buffer)[:n])
        self._at += n
        return n


class OcdbtKeys:
    """The entries of one or several OCDBT databases; of a key in several the first counts."""

    def __init__(self, bases: Sequence[str | dict[str, str]], name: str) -> None:
        """`bases` are addresses or specs as tensorstore takes them (`file:///...`), with a `/` at the end."""
        ts = tensorstore(name)
        self.name = name
        self._where: dict[str, Any] = {}
        # Nodes of the tree are asked for with every value; the values themselves are not kept.
        context = ts.Context({"cache_pool": {"total_bytes_limit": _NODES}})
        for base in bases:
            try:
                store = ts.KvStore.open({"driver": "ocdbt", "base": base}, context=context).result()
                keys = [key.decode() for key in store.list().result()]
            except (ValueError, UnicodeDecodeError, OSError) as error:
                raise DamagedFile(
                    "files-ocdbt", f"the database cannot be read: {str(error)[:200]}", name, "fetch the folder again"
                ) from None
            for key in keys:
                self._where.setdefault(key, store)

    def listed(self) -> frozenset[str]:
        """All keys."""
        return frozenset(self._where)

    def file(self, key: str) -> None:
        """None: a range of a value costs a walk through the tree."""
        return

    def read(self, key: str) -> bytes:
        """The value of one key."""
        return self._read(key, 0, None)

    def stream(self, key: str) -> io.RawIOBase:
        """A value in pieces of 1 MiB."""
        return _ValueStream(self, key)

    def piece(self, key: str, start: int) -> bytes:
        """The bytes of a value from `start` on, a piece at most; b'' past its end."""
        try:
            return self._range(key, start, start + _PIECE)
        except (ValueError, OSError):  # a range that ends past the value is refused: what is left is less than a piece
            return self._read(key, start, None)

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        try:
            made = self._range(key, start, stop)
        except (ValueError, OSError) as error:
            raise DamagedFile(
                "crc", f"the value cannot be read: {str(error)[:200]}", f"{self.name}: {key}", "fetch the folder again"
            ) from None
        if not made and self._is_lost(key):
            what = "the value cannot be read: the data file that holds it is missing or cut short"
            raise DamagedFile("files-missing", what, f"{self.name}: {key}", "fetch the folder again")
        return made

    def _is_lost(self, key: str) -> bool:
        """Whether there is a first byte and it cannot be read: tensorstore reads nothing then, without an error."""
        try:
            return not self._range(key, 0, 1)
        except (ValueError, OSError):  # past the end: the value is empty
            return False

    def _range(self, key: str, start: int, stop: int | None) -> bytes:
        return bytes(self._where[key].read(key, byte_range=slice(start, stop)).result().value)

    def close(self) -> None:
        """tensorstore keeps no file open."""


class _ValueStream(io.RawIOBase):
    def __init__(self, keys: OcdbtKeys, key: str) -> None:
        self._keys, self._key = keys, key
        self._start, self._rest = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._keys.piece(self._key, self._start))
            self._start += len(self._rest)
        n = min(len(buffer), len(self._rest))
        memoryview(buffer)[:n] = self._rest[:n]
        self._rest = self._rest[n:]
        return n
