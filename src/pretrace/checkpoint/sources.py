"""Where bytes come from: files read at an offset into the caller's buffer, and folders of such files.

The readers of formats see only `Source` and `Folder`, so that a local folder, a hub revision and a bucket are read by
the same code.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from pretrace.checkpoint.faults import DamagedFile
from pretrace.errors import PretraceError, from_os_error, naming


class Source(Protocol):
    """One file: its size is known, any range of it can be read, from any thread."""

    @property
    def name(self) -> str:
        """Path or address, for messages and for `StateView.files`."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` (bytes) from `offset` on, or raises."""

    def close(self) -> None:
        """Gives back the file."""


class Folder(Protocol):
    """A tree of files under relative names with `/`."""

    @property
    def name(self) -> str:
        """Path or address."""

    def sizes(self) -> dict[str, int]:
        """Relative name -> bytes, of every regular file below, sorted."""

    def open(self, name: str) -> Source:
        """One of the files."""

    def sha256(self, name: str) -> str | None:
        """The published sha256 of a file where the place knows it without reading the file."""


def read_bytes(source: Source, offset: int, n: int) -> bytes:
    """`n` bytes from `offset` on, checked against the size before any memory is taken."""
    if offset < 0 or n < 0 or offset + n > source.size:
        raise DamagedFile("size", f"bytes {offset} to {offset + n} are wanted, the file has {source.size}", source.name,
                          "the file is cut short or its header lies: fetch it again")  # fmt: skip
    buffer = bytearray(n)
    source.read_into(offset, memoryview(buffer))
    return bytes(buffer)


class LocalFile:
    """A regular local file, read with preadv: no shared position, no map."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        with naming(path, "opening"):
            # A pipe or a device would block or never end: looked at before it is opened.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise PretraceError("not a regular file", self.name, "name a file or a folder of files")
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size = os.fstat(self._fd).st_size

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset` on."""
        done = 0
        while done < len(target):
            try:
                n = os.preadv(self._fd, [target[done:]], offset + done)
            except OSError as error:
                raise from_os_error(error, self.name, doing="reading") from error
            if n == 0:
                raise DamagedFile("size", f"the file ends at byte {offset + done}, {len(target) - done} more are wanted",
                                  self.name, "the file is cut short: fetch it again")  # fmt: skip
            done += n

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close() if hasattr(self, "_fd") else None


class MemoryFile:
    """Bytes in memory as a source."""

    def __init__(self, data: bytes | memoryview, name: str = "memory") -> None:
        self.name = name
        self._data = memoryview(data)
        self.size = self._data.nbytes

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset` on."""
        if offset + len(target) > self.size:
            raise DamagedFile("size", f"the data ends at byte {self.size}", self.name, "it is cut short")
        target[:] = self._data[offset : offset + len(target)]

    def close(self) -> None:
        """Nothing to give back."""


class Window:
    """A range of another source as a file of its own (a small zip inside a large file)."""

    def __init__(self, source: Source, offset: int, size: int, name: str) -> None:
        if offset < 0 or size < 0 or offset + size > source.size:
            raise DamagedFile("size", f"bytes {offset} to {offset + size} lie outside of the file ({source.size} bytes)",
                              source.name, "the file is cut short: fetch it again")  # fmt: skip
        self.name, self.size = name, size
        self._source, self._offset = source, offset

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset` of the window on."""
        if offset + len(target) > self.size:
            raise DamagedFile(
                "size", f"byte {offset + len(target)} is wanted, the part has {self.size}", self.name, "it is cut short"
            )
        self._source.read_into(self._offset + offset, target)

    def close(self) -> None:
        """The window owns nothing."""


class LocalFolder:
    """A local folder. Links to files are followed (model caches are made of them), links to folders are not."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = os.fspath(path)

    def sizes(self) -> dict[str, int]:
        """Relative name -> bytes of every regular file below."""
        found: dict[str, int] = {}
        for root, _, names in os.walk(self.path, followlinks=False):
            for name in names:
                path = os.path.join(root, name)
                try:
                    status = os.stat(path)
                except OSError:  # a dangling link
                    continue
                if stat.S_ISREG(status.st_mode):
                    found[os.path.relpath(path, self.path).replace(os.sep, "/")] = status.st_size
        return dict(sorted(found.items()))

    def open(self, name: str) -> Source:
        """One of the files; names that leave the folder are refused."""
        return LocalFile(self.path / plain(name, self.name))

    def sha256(self, name: str) -> str | None:
        """Unknown: a local disk keeps no digest."""
        return None


class SingleFile:
    """One local file as a folder that holds it alone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = os.fspath(self.path.parent)

    def sizes(self) -> dict[str, int]:
        """The one file."""
        with naming(self.path, "reading"):
            return {self.path.name: self.path.stat().st_size}

    def open(self, name: str) -> Source:
        """The one file."""
        return LocalFile(self.path.parent / plain(name, self.name))

    def sha256(self, name: str) -> str | None:
        """Unknown."""
        return None


class SubFolder:
    """A part of another folder."""

    def __init__(self, folder: Folder, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix.rstrip("/") + "/"
        self.name = f"{folder.name.rstrip('/')}/{prefix.rstrip('/')}"

    def sizes(self) -> dict[str, int]:
        """Relative name -> bytes below the prefix."""
        n = len(self._prefix)
        return {name[n:]: size for name, size in self._folder.sizes().items() if name.startswith(self._prefix)}

    def open(self, name: str) -> Source:
        """One of the files."""
        return self._folder.open(self._prefix + plain(name, self.name))

    def sha256(self, name: str) -> str | None:
        """What the whole folder knows."""
        return self._folder.sha256(self._prefix + name)


def plain(name: str, where: str) -> str:
    """`name`, if it stays inside its folder; a name that climbs out, is absolute or holds a NUL is refused."""
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or "\\" in name
        or ".." in parts
        or parts[0] == ""
        or (len(name) > 1 and name[1] == ":")
    ):
        raise DamagedFile(
            "files-path",
            f"the name {name!r} leaves its folder",
            where,
            "do not trust this checkpoint; names must be plain",
        )
    return name
