"""Paths here and elsewhere: a local path is opened as it is, an address with a scheme (s3://, hf://, memory://) by fsspec.

Compressed streams (.gz, .zst) are opened by their name. A cut stream raises EOFError, a damaged one an error of `DAMAGED`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from pretrace.errors import PretraceError
from pretrace.files import temporary_name

COMPRESSED = (".gz", ".zst")
DAMAGED: tuple[type[Exception], ...] = (zstandard.ZstdError,)


def is_remote(path: str) -> bool:
    """Whether `path` has a scheme."""
    return "://" in path


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Turns what clients of object stores raise into a `PretraceError` that names the address.

    Each store has exceptions of its own, of no common kind, for one reason: it does not answer, or refuses.
    """
    try:
        yield
    except PretraceError:
        raise
    except FileNotFoundError:
        raise PretraceError(f"{os.path.basename(path)} does not exist", path, "check bucket and path") from None
    except Exception as error:
        raise PretraceError(f"this place cannot be reached: {str(error) or type(error).__name__}"[:300], path,
                            "check the address, the network and the credentials") from error  # fmt: skip


def _fs(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        return cast("tuple[Any, str]", fsspec.core.url_to_fs(path))
    except (ImportError, ValueError) as error:
        raise PretraceError(
            f"no way to open this kind of path: {error}", path, "install what the message names"
        ) from None


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    if not is_remote(path):
        return os.path.exists(path)
    fs, inner = _fs(path)
    with reaching(path):
        return bool(fs.exists(inner))


def is_folder(path: str) -> bool:
    """Whether `path` is a folder."""
    if not is_remote(path):
        return os.path.isdir(path)
    fs, inner = _fs(path)
    with reaching(path):
        return bool(fs.isdir(inner))


def join(folder: str, name: str) -> str:
    """`name` in `folder`."""
    return f"{folder.rstrip('/')}/{name}"


def walk(folder: str) -> list[str]:
    """Every file below `folder`, sorted by path; hidden files are left out. Linked folders are entered, circles are not."""
    if not is_remote(folder):
        found = list(_walk_here(folder, frozenset()))
    else:
        fs, inner = _fs(folder)
        with reaching(folder):
            found = [fs.unstrip_protocol(name) for name in fs.find(inner)]
    return sorted(f for f in found if not os.path.basename(f).startswith((".", "_")))


def _walk_here(folder: str, above: frozenset[str]) -> Iterator[str]:
    here = os.path.realpath(folder)
    if here in above:  # a link to a folder that this one lies in
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk_here(entry.path, above | {here})
            elif entry.is_file():
                yield entry.path


def matching(pattern: str) -> list[str]:
    """Remote files whose path fits a pattern with *, sorted."""
    fs, inner = _fs(pattern)
    with reaching(pattern):
        return sorted(fs.unstrip_protocol(name) for name in fs.glob(inner))


def size(path: str) -> int:
    """Bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    fs, inner = _fs(path)
    with reaching(path):
        return int(fs.size(inner))


def stamp(path: str) -> str:
    """What changes when the file is written anew: its size, and the time of its last change where there is one."""
    if not is_remote(path):
        state = os.stat(path)
        return f"{state.st_size}-{state.st_mtime_ns}"
    fs, inner = _fs(path)
    with reaching(path):
        info = fs.info(inner)
    return f"{info.get('size')}-{info.get('ETag') or info.get('mtime') or info.get('created') or ''}"


def local_copy(path: str) -> str:
    """The path itself, or that of a copy of a remote file on this machine, fetched once for each state of the file."""
    if not is_remote(path):
        return path
    name = hashlib.sha256(f"{path} {stamp(path)}".encode()).hexdigest()[:20]
    target = cache_folder() / name / os.path.basename(path)
    if not target.is_file():
        fs, inner = _fs(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(target)
        try:
            with reaching(path):
                fs.get_file(inner, str(temporary))
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return str(target)


def need_bucket(path: str) -> None:
    """Refuses an address to write to whose store or bucket is not there: before the work, not after it."""
    fs, inner = _fs(path)
    bucket = inner.split("/")[0]
    with reaching(path):
        there = not bucket or fs.exists(bucket)
    if not there:
        raise PretraceError(f"{bucket} does not exist", path, "make the bucket first, or check its name")


def put(local: str | Path, path: str) -> None:
    """Copies a finished local file to a remote path; object stores show it only when it is whole."""
    fs, inner = _fs(path)
    with reaching(path):
        if "/" in os.path.dirname(inner):  # a bucket itself is not made by writing into it
            fs.makedirs(os.path.dirname(inner), exist_ok=True)
        fs.put_file(str(local), inner)


def cache_folder() -> Path:
    """Where copies of remote files lie: a folder of this user in the machine's temporary place."""
    return Path(tempfile.gettempdir()) / f"pretrace-{os.getuid()}" / "remote"


def open_binary(path: str) -> IO[bytes]:
    """A file object that can seek."""
    if not is_remote(path):
        return open(path, "rb", buffering=1 << 20)  # lines of text are often longer than the default of 8 KiB
    fs, inner = _fs(path)
    with reaching(path):
        return cast("IO[bytes]", fs.open(inner, "rb"))


def open_stream(path: str) -> IO[bytes]:
    """The bytes of a file, unpacked if its name ends in .gz or .zst."""
    return unpacking(open_binary(path), path)


def unpacking(raw: IO[bytes], path: str) -> IO[bytes]:
    """The bytes of an open file, unpacked if its name ends in .gz or .zst."""
    if path.endswith(".gz"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="rb"))
    if path.endswith(".zst"):
        return io.BufferedReader(_Zstd(raw), 1 << 20)
    return raw


class _Zstd(io.RawIOBase):
    """A zstandard stream that knows when it is cut: the library's reader takes an early end for the end."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._pending, self._end = raw, b"", True
        self._fresh()

    def _fresh(self) -> None:
        self._decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            if not self._more():
                return 0
        part = self._pending[: len(buffer)]
        buffer[: len(part)] = part
        self._pending = self._pending[len(part) :]
        return len(part)

    def _more(self) -> bool:
        packed = self._decoder.unused_data if self._decoder.eof else b""
        if self._decoder.eof:
            self._fresh()
        packed = packed or self._raw.read(1 << 20)
        if not packed:
            if not self._end:
                raise EOFError("the zstandard stream ends before its end mark")
            return False
        self._pending = self._decoder.decompress(packed)
        self._end = self._decoder.eof
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()
