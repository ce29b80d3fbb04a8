"""The units of work of a corpus: what one worker reads at a time. They depend on the corpus alone, not on the workers.

A plain JSON-lines file is cut by bytes, a parquet file by row groups, an Arrow file on this machine by record batches, a plain
TFRecord file by records: the worker reads its part itself. A compressed file of lines can only be read from its start, so it is
unpacked here, once, and the worker is handed the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pretrace.data.columnar as columnar
import pretrace.data.corpus as corpus
import pretrace.data.remote as remote
import pretrace.data.tfrecord as tfrecord
from pretrace.data.corpus import CorpusSpec, Document

UNIT_BYTES = 64 << 20  # of a file
BLOCK_BYTES = 16 << 20  # of unpacked lines: two a worker wait in memory


@dataclass(frozen=True, slots=True)
class Unit:
    """A file, or a part of one."""

    number: int
    file: str
    size: int  # bytes of the file, for progress
    span: tuple[int, int] | None = None  # None: the whole file; else bytes, row groups, or record batches
    lines: bytes | None = None  # the lines of an unpacked file that begin at byte span[0] of it
    row: int = 0  # of the first document (Arrow, TFRecord)

    def documents(self, spec: CorpusSpec) -> Iterator[Document]:
        """The documents of the unit, in order."""
        if self.span is None:
            return corpus.read_file(spec, self.file)
        if self.lines is not None:
            return corpus.parse_lines(spec, self.file, self.lines, self.span[0])
        if spec.format in ("arrow", "tfrecord"):
            return corpus.read_parts(spec, self.file, *self.span, self.row)
        read = corpus.read_groups if spec.format == "parquet" else corpus.read_lines
        return read(spec, self.file, *self.span)


def identity(spec: CorpusSpec) -> list[object]:
    """What decides the units: the files with their state (size and time of change), and the sizes above."""
    files = corpus.files_of(spec)
    stamps = [[file, "" if spec.format == "hub" else _stamp(file)] for file in files]
    return [UNIT_BYTES, BLOCK_BYTES, stamps]


def _stamp(file: str) -> str:
    with corpus.explained(file):
        return remote.stamp(file)


def size_of(spec: CorpusSpec) -> int:
    """Bytes of the corpus's files: the sum of its units' sizes."""
    return sum(_size(spec, file) for file in corpus.files_of(spec))


def _size(spec: CorpusSpec, file: str) -> int:
    if spec.format == "hub":
        return 0
    with corpus.explained(file):
        return remote.size(file)


def units_of(spec: CorpusSpec) -> Iterator[Unit]:
    """The units of a corpus, in order, made as they are asked for.

    Raises
    ------
    PretraceError
        If a path is missing, or a file that is unpacked here is damaged.
    """
    number = 0
    for file in corpus.files_of(spec):
        for span, size, lines, row in _parts(spec, file):
            yield Unit(number, file, size, span, lines, row)
            number += 1


_Part = tuple[tuple[int, int] | None, int, bytes | None, int]


def _parts(spec: CorpusSpec, file: str) -> Iterator[_Part]:
    size = _size(spec, file)
    if spec.format == "jsonl" and file.endswith(remote.COMPRESSED):
        yield from _unpacked(file)
    elif spec.format == "jsonl" and size > UNIT_BYTES:
        for start in range(0, size, UNIT_BYTES):
            stop = min(start + UNIT_BYTES, size)
            yield (start, stop), stop - start, None, 0
    elif spec.format == "parquet" and size > UNIT_BYTES:
        with corpus.explained(file):
            groups = [(n_bytes, 0) for n_bytes in columnar.parquet_groups(file)]
        yield from _grouped(groups, size)
    elif spec.format == "arrow" and size > UNIT_BYTES and not remote.is_remote(file):
        with corpus.explained(file):
            groups = columnar.arrow_groups(file)
        yield from _grouped(groups, size)
    elif spec.format == "tfrecord" and size > UNIT_BYTES and not file.endswith(remote.COMPRESSED):
        with corpus.explained(file):
            for start, stop, row in tfrecord.spans(file, UNIT_BYTES):
                yield (start, stop), stop - start, None, row
    else:
        yield None, size, None, 0


def _unpacked(file: str) -> Iterator[_Part]:
    """Blocks of whole lines; their sizes sum to that of the packed file."""
    at, seen = 0, 0
    rest: list[bytes] = []  # of a line that has not ended
    with corpus.explained(file), remote.open_binary(file) as raw, remote.unpacking(raw, file) as stream:
        while block := stream.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1 if len(block) == BLOCK_BYTES else len(block)  # a short block is the last
            if end:
                lines, rest = b"".join((*rest, block[:end])), [block[end:]]
                yield (at, at + len(lines)), raw.tell() - seen, lines, 0
                at, seen = at + len(lines), raw.tell()
            else:
                rest.append(block)
        lines = b"".join(rest)
        if lines:
            yield (at, at + len(lines)), raw.tell() - seen, lines, 0


def _grouped(groups: list[tuple[int, int]], size: int) -> Iterator[_Part]:
    """Runs of groups (given by their bytes and rows) of about UNIT_BYTES; their sizes sum to `size`."""
    first = taken = done = row = rows = 0
    for number, (n_bytes, n_rows) in enumerate(groups):
        taken, rows = taken + n_bytes, rows + n_rows
        last = number == len(groups) - 1
        if taken >= UNIT_BYTES or last:
            part = size - done if last else min(taken, size - done)  # unpacked batches can be larger than the file
            yield (first, number + 1), part, None, row
            first, done, taken, row, rows = number + 1, done + part, 0, row + rows, 0
    if not groups:
        yield None, size, None, 0
