"""Fills a layout: several threads, bounded memory, gone on with after a kill. What it writes is what the plain writer writes.

Files get their full size first, so a full disk shows before a byte is converted. Finished units go to the disk while the next
ones are made, and then into a journal; a second start with the same plan skips them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.layout import Block, Bytes, Crc, Layout, PlannedFile
from pretrace.convert.direct import BLOCK_BYTES, hold
from pretrace.convert.journal import Journal, Noting, to_disk
from pretrace.convert.units import Unit, Work
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError, naming

_SYNCING = 8  # files that wait for the disk at once
_COPY_BYTES = 64 << 20
Advance = Callable[[int], None]  # called with the bytes just written


@dataclass(frozen=True, slots=True)
class Job:
    """One writing: the plan, where, how many threads, and what has been done before."""

    layout: Layout
    work: Work
    folder: Path
    threads: int
    journal: Journal
    advance: Advance


def make_files(layout: Layout, folder: Path) -> None:
    """All files at their full size, in their folders.

    Raises
    ------
    PretraceError
        If there is no room, or no permission.
    """
    for file in layout.files:
        path = folder / file.path
        with naming(path, "writing"):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.fstat(fd).st_size != file.size_bytes:
                    os.ftruncate(fd, file.size_bytes)
                _reserve(fd, file.size_bytes)
            finally:
                os.close(fd)


def _reserve(fd: int, size: int) -> None:
    if size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno in (28, 122, 27):  # no space, quota, larger than a file may be
                raise
            # Some file systems cannot reserve; they say so when they are full.


def write_tensors(job: Job, units: Sequence[Unit], *, sync_last: bool) -> None:
    """Writes the units that the journal does not have.

    The last ones need not be on the disk yet (`sync_last`) where `write_rest` follows: a loss of power in between would leave the
    journal ahead of the files, and the proof reads every byte anyway.

    Raises
    ------
    PretraceError
        If a tensor cannot be read or a file not be written. What was flushed before is kept.
    """
    new = [unit for unit in units if unit.key not in job.journal.done]
    job.advance(sum(unit.size_bytes for unit in units) - sum(unit.size_bytes for unit in new))
    files = partial(_files_of, job)
    with naming(job.folder, "writing"), ThreadPoolExecutor(job.threads) as pool, Noting(job.journal) as noting:
        for unit in new:
            _WRITERS[unit.kind](job, unit, pool)
            noting.wrote(unit, files)
        noting.rest(files if sync_last else lambda units: ())


def _files_of(job: Job, units: Sequence[Unit]) -> list[Path]:
    paths = dict.fromkeys(path for unit in units for name in unit.tensors for path, _ in job.work.places[name])
    return [job.folder / path for path in paths]


def _copy(job: Job, unit: Unit, pool: ThreadPoolExecutor) -> None:
    """The kernel copies runs of bytes from file to file."""
    list(pool.map(lambda name: _copy_tensor(job, name), unit.tensors))


def _copy_tensor(job: Job, name: str) -> None:
    for path, piece in job.work.places[name]:
        to = os.open(job.folder / path, os.O_WRONLY)
        try:
            for run in job.work.extents[name]:
                _copy_run(run.file, run.offset, run.first, run.size_bytes, to, piece, job.advance)
        finally:
            os.close(to)


def _copy_run(file: str, offset: int, first: int, size: int, to: int, piece: Block, advance: Advance) -> None:
    """The part of a run (elements from `first` on) that belongs to a piece."""
    width = piece.itemsize
    start, stop = max(first, piece.start), min(first + size // width, piece.stop)
    if start >= stop:
        return
    source_at = offset + (start - first) * width
    target_at = piece.offset + (start - piece.start) * width
    left = (stop - start) * width
    fd = os.open(file, os.O_RDONLY)
    try:
        while left:
            n = _copy_some(fd, to, min(left, _COPY_BYTES), source_at, target_at)
            if not n:
                raise PretraceError(
                    "the source became shorter while it was read", file, "wait until its writer is done"
                )
            source_at, target_at, left = source_at + n, target_at + n, left - n
            advance(n)
    finally:
        os.close(fd)


def _copy_some(source: int, target: int, n: int, source_at: int, target_at: int) -> int:
    try:
        return os.copy_file_range(source, target, n, source_at, target_at)
    except OSError as error:
        if error.errno not in (18, 22, 38, 95):  # another file system, not supported
            raise
    data = os.pread(source, min(n, BLOCK_BYTES), source_at)
    _write(target, data, target_at)
    return len(data)


def _held(job: Job, unit: Unit, pool: ThreadPoolExecutor) -> None:
    """The stored tensors into memory, then the target block by block, both by all threads."""
    held = hold({name: job.work.directs[name] for name in unit.tensors}, pool)

    def put(block: tuple[str, int, int]) -> None:
        _put(job, block, job.work.directs[block[0]].fill(held, block[1], block[2]))

    list(pool.map(put, _blocks(job, unit)))


def _plain(job: Job, unit: Unit, pool: ThreadPoolExecutor) -> None:
    """Block by block through the views."""
    read = job.layout.sources.read
    list(pool.map(lambda block: _put(job, block, read(block[0], block[1], block[2])), _blocks(job, unit)))


def _blocks(job: Job, unit: Unit) -> Iterable[tuple[str, int, int]]:
    for name in unit.tensors:
        info = job.layout.sources.info(name)
        step = max(1, BLOCK_BYTES // dtype(info.dtype).itemsize)
        for start in range(0, info.numel, step):
            yield name, start, min(start + step, info.numel)


def _put(job: Job, block: tuple[str, int, int], data: NDArray[Any]) -> None:
    name, first, last = block
    for path, piece in job.work.places[name]:
        start, stop = max(first, piece.start), min(last, piece.stop)
        if start < stop:
            fd = os.open(job.folder / path, os.O_WRONLY)
            try:
                _write(fd, data[start - first : stop - first].view(np.uint8).data,
                       piece.offset + (start - piece.start) * piece.itemsize)  # fmt: skip
            finally:
                os.close(fd)
    job.advance(data.nbytes)


_WRITERS: dict[str, Callable[[Job, Unit, ThreadPoolExecutor], None]] = {"copy": _copy, "held": _held, "plain": _plain}


def write_rest(layout: Layout, folder: Path, threads: int) -> None:
    """The bytes that were known beforehand, and the checksums of what the tensors became; then all to the disk."""
    sums = [(file.path, piece) for file in layout.files for piece in file.pieces if isinstance(piece, Crc)]
    with naming(folder, "writing"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda file: _known(file, folder / file.path), layout.files))
        list(pool.map(lambda one: _checksum(folder / one[0], one[1]), sums))
    with naming(folder, "writing"), ThreadPoolExecutor(_SYNCING) as pool:
        list(pool.map(to_disk, (folder / file.path for file in layout.files)))


def _known(file: PlannedFile, path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        for piece in file.pieces:
            if isinstance(piece, Bytes):
                _write(fd, piece.data, piece.offset)
    finally:
        os.close(fd)


def _checksum(path: Path, piece: Crc) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        _write(fd, _crc(fd, piece).to_bytes(piece.size_bytes, "little"), piece.offset)
    finally:
        os.close(fd)


def _crc(fd: int, piece: Crc) -> int:
    value, at = 0, piece.begin
    while at < piece.end:
        data = os.pread(fd, min(BLOCK_BYTES, piece.end - at), at)
        value, at = zlib.crc32(data, value), at + len(data)
    return value


def _write(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n
