"""The units of work of a corpus: what one worker reads at a time. They depend on the corpus alone, not on the workers.

A plain JSON-lines file is cut by bytes and a parquet file by row groups: the worker reads its part itself. A compressed file of
lines can only be read from its start, so it is unpacked here, once, and the worker is handed the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pretrace.data.columnar as columnar
import pretrace.data.corpus as corpus
import pretrace.data.remote as remote
from pretrace.data.corpus import CorpusSpec, Document

UNIT_BYTES = 64 << 20  # of a file
BLOCK_BYTES = 16 << 20  # of unpacked lines: two a worker wait in memory


@dataclass(frozen=True, slots=True)
class Unit:
    """A file, or a part of one."""

    number: int
    file: str
    size: int  # bytes of the file, for progress
    span: tuple[int, int] | None = None  # None: the whole file; else bytes of its lines, or row groups
    lines: bytes | None = None  # the lines of an unpacked file that begin at byte span[0] of it

    def documents(self, spec: CorpusSpec) -> Iterator[Document]:
        """The documents of the unit, in order."""
        if self.span is None:
            return corpus.read_file(spec, self.file)
        if self.lines is not None:
            return corpus.parse_lines(spec, self.file, self.lines, self.span[0])
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
        for span, size, lines in _parts(spec, file):
            yield Unit(number, file, size, span, lines)
            number += 1


_Part = tuple[tuple[int, int] | None, int, bytes | None]


def _parts(spec: CorpusSpec, file: str) -> Iterator[_Part]:
    size = _size(spec, file)
    if spec.format == "jsonl" and file.endswith(remote.COMPRESSED):
        yield from _unpacked(file)
    elif spec.format == "jsonl" and size > UNIT_BYTES:
        for start in range(0, size, UNIT_BYTES):
            stop = min(start + UNIT_BYTES, size)
            yield (start, stop), stop - start, None
    elif spec.format == "parquet" and size > UNIT_BYTES:
        with corpus.explained(file):
            groups = columnar.parquet_groups(file)
        yield from _grouped(groups, size)
    else:
        yield None, size, None


def _unpacked(file: str) -> Iterator[_Part]:
    """Blocks of whole lines; their sizes sum to that of the packed file."""
    at, seen = 0, 0
    rest: list[bytes] = []  # of a line that has not ended
    with corpus.explained(file), remote.open_binary(file) as raw, remote.unpacking(raw, file) as stream:
        while block := stream.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1 if len(block) == BLOCK_BYTES else len(block)  # a short block is the last
            if end:
                lines, rest = b"".join((*rest, block[:end])), [block[end:]]
                yield (at, at + len(lines)), raw.tell() - seen, lines
                at, seen = at + len(lines), raw.tell()
            else:
                rest.append(block)
        lines = b"".join(rest)
        if lines:
            yield (at, at + len(lines)), raw.tell() - seen, lines


def _grouped(groups: list[int], size: int) -> Iterator[_Part]:
    """Runs of row groups (given by their bytes) of about UNIT_BYTES; their sizes sum to `size`."""
    first = taken = done = 0
    for number, n_bytes in enumerate(groups):
        taken += n_bytes
        if taken >= UNIT_BYTES or number == len(groups) - 1:
            last = number == len(groups) - 1
            yield (first, number + 1), size - done if last else taken, None
            first, done, taken = number + 1, done + taken, 0
