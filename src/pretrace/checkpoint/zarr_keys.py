"""Where zarr keeps its keys: files of a folder, or the entries of an OCDBT database (read by tensorstore)."""

from __future__ import annotations

from typing import Any, Protocol

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.sources import Folder, plain, read_bytes
from pretrace.checkpoint.zarr_array import tensorstore

MAX_VALUE = 1 << 34  # bytes of one chunk


class Keys(Protocol):
    """Named byte strings."""

    @property
    def name(self) -> str:
        """Path or address."""

    def listed(self) -> frozenset[str]:
        """All keys, with `/`."""

    def read(self, key: str) -> bytes:
        """The value of a key that is there."""


class FileKeys:
    """Each key is a file of a folder."""

    def __init__(self, folder: Folder) -> None:
        self.name = folder.name
        self._folder = folder
        self._listed = frozenset(folder.sizes())

    def listed(self) -> frozenset[str]:
        """All files."""
        return self._listed

    def read(self, key: str) -> bytes:
        """A file's bytes."""
        source = self._folder.open(plain(key, self.name))
        try:
            return read_bytes(source, 0, min(source.size, MAX_VALUE))
        finally:
            source.close()


class OcdbtKeys:
    """The entries of one or several OCDBT databases; of a key in several the first counts."""

    def __init__(self, bases: list[str], name: str) -> None:
        """`bases` are addresses as tensorstore takes them (`file:///...`), with a `/` at the end."""
        ts = tensorstore(name)
        self.name = name
        self._where: dict[str, Any] = {}
        for base in bases:
            try:
                store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
                keys = [key.decode() for key in store.list().result()]
            except (ValueError, UnicodeDecodeError, OSError) as error:
                raise DamagedFile(
                    "files-ocdbt", f"the database cannot be read: {str(error)[:200]}", base, "fetch the folder again"
                ) from None
            for key in keys:
                self._where.setdefault(key, store)

    def listed(self) -> frozenset[str]:
        """All keys."""
        return frozenset(self._where)

    def read(self, key: str) -> bytes:
        """The value of one key; OCDBT checks it against its own checksum."""
        try:
            result = self._where[key].read(key).result()
        except (ValueError, OSError) as error:
            raise DamagedFile(
                "crc", f"the value cannot be read: {str(error)[:200]}", f"{self.name}: {key}", "fetch the folder again"
            ) from None
        return bytes(result.value)
