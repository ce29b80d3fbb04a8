"""What will be written, as a value: every byte of every file of a target, before one of them exists.

A `Layout` lists the files of a checkpoint. Each file is a row of pieces that cover it without a gap: bytes that are known
already (headers, pickles, zip directories), elements of tensors, and checksums of what stands elsewhere in the file. Tensors
carry the target's names and are read from `sources`, where they are relabelled, split or fused. So a layout can be printed,
filled by several threads or hosts in any order, gone on with after a stop, and tested without a disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pretrace.checkpoint.chunked import StoredArray
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that are known when the layout is made."""

    offset: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        """How many."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Block:
    """Elements [start, stop) of a tensor of `Layout.sources`, row by row, little-endian, in its dtype."""

    offset: int
    tensor: str
    start: int
    stop: int
    itemsize: int

    @property
    def size_bytes(self) -> int:
        """How many bytes the elements take."""
        return (self.stop - self.start) * self.itemsize


@dataclass(frozen=True, slots=True)
class Crc:
    """The CRC-32 (zlib's) of bytes [begin, end) of the same file, little-endian. These bytes hold no other `Crc`."""

    offset: int
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Four."""
        return CRC_BYTES


Piece = Bytes | Block | Crc


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file: its name below the target, with `/`, and the pieces that cover it in order."""

    path: str
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self.pieces[-1].offset + self.pieces[-1].size_bytes if self.pieces else 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that it holds, each once."""
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces if isinstance(piece, Block)))


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of a target, in the order in which a plain writer writes them: what marks a save as whole is last."""

    format: str
    files: tuple[PlannedFile, ...]
    sources: StateView  # tensors under the target's names, in its layout and dtype
    dropped: tuple[str, ...] = ()  # tensors of the view that have no place in the target
    notes: tuple[str, ...] = ()  # in words, what is not as a reader might expect
    parts: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # tensor -> those of `sources` that it is written as

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that the target holds: those of `sources` without the parts of others."""
        return _without_parts(self)


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A target whose arrays a library writes (OCDBT through tensorstore): arrays with their chunks, and plain files beside.

    `first` are written before the arrays, `last` after them: what marks the save as whole.
    """

    format: str
    store: str  # folder of the store below the target, '' for the target itself
    arrays: tuple[StoredArray, ...]
    first: tuple[PlannedFile, ...]
    last: tuple[PlannedFile, ...]
    sources: StateView
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements, before the store compresses them."""
        return sum(self.sources.info(array.tensor).size_bytes for array in self.arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """As those of `Layout`."""
        return _without_parts(self)


def _without_parts(layout: Layout | StoreLayout) -> tuple[str, ...]:
    parts = {part for of in layout.parts.values() for part in of}
    return tuple(name for name in layout.sources.names() if name not in parts)


class Draft:
    """A file while it is planned: pieces are put one after the other."""

    def __init__(self, path: str, sources: StateView) -> None:
        parts = PurePosixPath(path).parts
        assert parts, path
        assert not path.startswith("/"), path
        assert ".." not in parts, path
        self._path, self.sources = path, sources
        self._pieces: list[Piece] = []
        self._known: list[bytes] = []  # joined when something else follows
        self.at = 0  # bytes so far

    def bytes(self, data: bytes) -> None:
        """Known bytes; neighbours become one piece."""
        self._known.append(data)
        self.at += len(data)

    def tensor(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Elements [start, stop) of a tensor; all of them if it is not said."""
        info = self.sources.info(name)
        end = info.numel if stop is None else stop
        if end > start:
            self._put(Block(self.at, name, start, end, dtype(info.dtype).itemsize))

    def crc(self, begin: int, end: int) -> None:
        """The checksum of a range of this file."""
        self._put(Crc(self.at, begin, end))

    def _put(self, piece: Block | Crc) -> None:
        self._join()
        self._pieces.append(piece)
        self.at += piece.size_bytes

    def _join(self) -> None:
        data = b"".join(self._known)
        if data:
            self._pieces.append(Bytes(self.at - len(data), data))
        self._known.clear()

    def align(self, n: int) -> None:
        """Zeros up to a multiple of `n`."""
        self.bytes(bytes(-self.at % n))

    def done(self) -> PlannedFile:
        """The file."""
        self._join()
        return PlannedFile(self._path, tuple(self._pieces))


def known_file(path: str, data: bytes) -> PlannedFile:
    """A file all of whose bytes are known."""
    return PlannedFile(path, (Bytes(0, data),) if data else ())


def groups_of(sizes: Iterable[tuple[str, int]], most: int | None) -> Iterator[tuple[str, ...]]:
    """Names in groups of at most `most` bytes, in order; a name that is larger alone is a group of its own.

    >>> list(groups_of([("a", 3), ("b", 3), ("c", 9), ("d", 1)], 6))
    [('a', 'b'), ('c',), ('d',)]
    """
    group: list[str] = []
    total = 0
    for name, size in sizes:
        if group and most is not None and total + size > most:
            yield tuple(group)
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield tuple(group)


# An 8-bit weight means nothing without the scales beside it, whose rules are the writing library's own.
RESAVE = "save it once in bfloat16 or float32 with the library that wrote it"


def refuse(format: str, why: str, mend: str) -> PretraceError:
    """The error that `format` cannot hold what it is asked to."""
    return PretraceError(f"{format} cannot hold this: {why}", f"--to {format}", mend)
