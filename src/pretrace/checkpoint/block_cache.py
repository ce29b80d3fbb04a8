"""A cache of byte ranges of remote files: what was fetched once is not fetched again, also after a stop in between.

For each file a sparse copy (`<key>.data`) and one byte for each block of 256 KiB that says whether the block is there
(`<key>.have`), written after the block is on the disk. The key is a digest of the file's pinned identity (commit or
ETag), so a file that changes upstream is another file here. The folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from pretrace.checkpoint.faults import DamagedFile
from pretrace.errors import naming

BLOCK = 256 << 10
MAX_REQUEST = 32 << 20
Fetch = Callable[[int, int], bytes]  # (first byte, number of bytes) -> the bytes


def default_cache() -> Path:
    """`$PRETRACE_CACHE`, else `pretrace` in the user's cache folder."""
    told = os.environ.get("PRETRACE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(told) if told else Path(home) / "pretrace" / "remote"


class CachedFile:
    """A remote file as a source; ranges are fetched when they are first asked for."""

    def __init__(self, name: str, size: int, identity: str, fetch: Fetch, cache: Path) -> None:
        self.name, self.size = name, size
        self._fetch = fetch
        self._lock = threading.Lock()
        self.n_blocks = -(-size // BLOCK)
        base = cache / hashlib.sha256(f"{identity} {size}".encode()).hexdigest()[:40]
        with naming(cache, "caching"):
            cache.mkdir(parents=True, exist_ok=True)
            self._data = os.open(base.with_suffix(".data"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._flags = os.open(base.with_suffix(".have"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._have = bytearray(os.pread(self._flags, self.n_blocks, 0).ljust(self.n_blocks, b"\0"))

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset` on, from the cache where the blocks are there."""
        if offset + len(target) > self.size:
            raise DamagedFile(
                "size",
                f"byte {offset + len(target)} is wanted, the file has {self.size}",
                self.name,
                "the file is cut short or its header lies",
            )
        if len(target):
            self._complete(offset // BLOCK, -(-(offset + len(target)) // BLOCK))
            with naming(self.name, "reading the cache"):
                done = 0
                while done < len(target):
                    done += os.preadv(self._data, [target[done:]], offset + done)

    def _complete(self, first: int, last: int) -> None:
        """Fetches what is missing of the blocks [first, last)."""
        while (run := self._missing(first, last)) is not None:
            start, stop = run[0] * BLOCK, min(run[1] * BLOCK, self.size)
            data = self._fetch(start, stop - start)
            if len(data) != stop - start:
                raise DamagedFile(
                    "size",
                    f"the server sent {len(data):,} of {stop - start:,} bytes at {start:,}",
                    self.name,
                    "try again",
                )
            with self._lock, naming(self.name, "writing the cache"):
                os.pwrite(self._data, data, start)
                os.fdatasync(self._data)
                self._have[run[0] : run[1]] = b"\1" * (run[1] - run[0])
                os.pwrite(self._flags, b"\1" * (run[1] - run[0]), run[0])

    def _missing(self, first: int, last: int) -> tuple[int, int] | None:
        start = self._have.find(0, first, last)
        if start < 0:
            return None
        stop = self._have.find(1, start, min(last, start + MAX_REQUEST // BLOCK))
        return start, stop if stop >= 0 else min(last, start + MAX_REQUEST // BLOCK)

    def close(self) -> None:
        """Closes the files of the cache; a second call does nothing."""
        for fd in (self._data, self._flags):
            if fd >= 0:
                os.close(fd)
        self._data = self._flags = -1

    def __del__(self) -> None:
        self.close() if hasattr(self, "_flags") else None
