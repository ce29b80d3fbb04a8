"""The units of work of a corpus: what one worker reads at a time. They depend on the corpus alone, not on the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pretrace.data.corpus as corpus
import pretrace.data.remote as remote
from pretrace.data.corpus import CorpusSpec, Document

UNIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """A file, or the lines that begin in bytes [start, stop) of a plain JSON-lines file."""

    number: int
    file: str
    start: int
    stop: int | None  # None: the whole file
    size: int  # bytes, for progress
    stamp: str  # size and time of the file: a changed file is another unit

    @property
    def key(self) -> list[object]:
        """What identifies the unit and the state of its file."""
        return [self.number, self.file, self.start, self.stop, self.stamp]

    def documents(self, spec: CorpusSpec) -> Iterator[Document]:
        """The documents of the unit, in order."""
        if self.stop is None:
            return corpus.read_file(spec, self.file)
        return corpus.read_lines(spec, self.file, self.start, self.stop)


def units_of(spec: CorpusSpec, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """The units of a corpus, in order.

    Raises
    ------
    PretraceError
        If a path is missing.
    """
    units: list[Unit] = []
    for file in corpus.files_of(spec):
        if spec.format == "hub":
            units.append(Unit(len(units), file, 0, None, 0, ""))
            continue
        with corpus.explained(file):
            size, stamp = remote.size(file), remote.stamp(file)
        cut = spec.format == "jsonl" and not remote.is_remote(file) and not file.endswith((".gz", ".zst"))
        for start in range(0, size, unit_bytes) if cut and size > unit_bytes else (None,):
            if start is None:
                units.append(Unit(len(units), file, 0, None, size, stamp))
            else:
                stop = min(start + unit_bytes, size)
                units.append(Unit(len(units), file, start, stop, stop - start, stamp))
    return units
