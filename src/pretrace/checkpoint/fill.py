"""The plain way to write a layout: piece after piece, file after file. What a faster engine writes must be the same bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.layout import Block, Bytes, Crc, Layout, PlannedFile
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.files import atomic_file

BLOCK_BYTES = 4 << 20
Progress = Callable[[int], None]  # called with the bytes of tensors written so far


def write_layout(layout: Layout, folder: str | Path, *, progress: Progress | None = None) -> None:
    """Writes all files of a layout below an existing folder, each whole or not at all.

    Raises
    ------
    PretraceError
        If a tensor cannot be read or a file cannot be written; that file is not left half.
    """
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done)

    for file in layout.files:
        path = Path(folder) / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, "w+b") as out:
            fill(out, file, layout.sources, count)


def fill(out: IO[bytes], file: PlannedFile, sources: StateView, count: Callable[[int], None]) -> None:
    """Writes the pieces of one file; checksums last, of what stands in the file by then."""
    for piece in file.pieces:
        out.seek(piece.offset)
        if isinstance(piece, Bytes):
            out.write(piece.data)
        elif isinstance(piece, Block):
            for block in blocks(sources, piece.tensor, start=piece.start, stop=piece.stop):
                out.write(block.view(np.uint8).data)
                count(block.nbytes)
        else:
            out.write(bytes(piece.size_bytes))
    for piece in file.pieces:
        if isinstance(piece, Crc):
            checksum = _crc(out, piece)
            out.seek(piece.offset)
            out.write(checksum.to_bytes(piece.size_bytes, "little"))


def _crc(out: IO[bytes], piece: Crc) -> int:
    checksum, at = 0, piece.begin
    while at < piece.end:
        out.seek(at)
        data = out.read(min(BLOCK_BYTES, piece.end - at))
        checksum = zlib.crc32(data, checksum)
        at += len(data)
    return checksum


def blocks(
    view: StateView, name: str, block_bytes: int = BLOCK_BYTES, *, start: int = 0, stop: int | None = None
) -> Iterator[NDArray[Any]]:
    """A tensor's elements in order, in blocks that share one buffer: use each before asking for the next."""
    info = view.info(name)
    end = info.numel if stop is None else stop
    storage = np.dtype(dtype(info.dtype).storage)
    n = max(1, min(block_bytes // storage.itemsize, end - start))
    buffer = np.empty(n, storage)
    for first in range(start, end, n):
        yield view.read(name, first, min(first + n, end), buffer)
