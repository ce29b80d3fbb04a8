"""Decoded chunks: the newest of all open views within one budget of memory, the others in unnamed files.

A chunk that is read in parts is decoded once: it stays in memory while it is among the newest, and what falls out before all
of it was read goes to a file without a name. A chunk larger than half the budget is decoded straight into that file.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUDGET = 16 << 20  # bytes of decoded chunks in memory, of the whole process


@dataclass(slots=True)
class _Kept:
    """A chunk in memory, and how many of its elements were read."""

    elements: NDArray[Any]
    read: int = 0


class Room:
    """The memory that all views share. Whoever puts a chunk in carries out what falls out."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: OrderedDict[tuple[Spill, str], _Kept] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks in memory."""
        return self._held

    def get(self, owner: Spill, name: str, n: int) -> NDArray[Any] | None:
        """A chunk, if it is in memory; `n` elements of it will be read."""
        with self._lock:
            kept = self._kept.get((owner, name))
            if kept is None:
                return None
            self._kept.move_to_end((owner, name))
            kept.read += n
            return kept.elements

    def put(self, owner: Spill, name: str, elements: NDArray[Any], n: int) -> None:
        """Keeps a chunk of which `n` elements are being read; the oldest ones leave."""
        with self._lock:
            if (before := self._kept.pop((owner, name), None)) is not None:
                self._held -= before.elements.nbytes
            self._kept[owner, name] = _Kept(elements, n)
            self._held += elements.nbytes
            leaving = []
            while self._held > self.budget and len(self._kept) > 1:
                (spill, other), kept = self._kept.popitem(last=False)
                self._held -= kept.elements.nbytes
                leaving.append((spill, other, kept))
        for spill, other, kept in leaving:
            if kept.read < kept.elements.size:  # what was read from end to end is seldom asked for again
                spill.save(other, kept.elements)

    def forget(self, owner: Spill) -> None:
        """Drops the chunks of a view that is closed."""
        with self._lock:
            for key in [key for key in self._kept if key[0] is owner]:
                self._held -= self._kept.pop(key).elements.nbytes


ROOM = Room(BUDGET)  # memory belongs to the process, whoever opened the views


class Spill:
    """The unnamed file of one view. Where the disk is full nothing is kept, and chunks are decoded again."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._file: Any = None
        self._end = 0
        self._full = False
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Whether a chunk is in the file."""
        return name in self._at

    def read(self, name: str, offset: int, target: memoryview) -> None:
        """Fills `target` from byte `offset` of a chunk on."""
        done = 0
        while done < len(target) and (
            n := os.preadv(self._file.fileno(), [target[done:]], self._at[name] + offset + done)
        ):
            done += n
        assert done == len(target), name

    def save(self, name: str, elements: NDArray[Any]) -> bool:
        """Writes a chunk; whether it is in the file now."""
        return self.fill(name, elements.nbytes, lambda write: write(elements.view(np.uint8).data, 0))

    def fill(self, name: str, size: int, make: Callable[[Callable[[memoryview, int], None]], None]) -> bool:
        """Lets `make` write a chunk of `size` bytes in pieces; whether it is in the file now."""
        if self._full or name in self._at:
            return not self._full
        with self._lock:
            try:
                self._file = self._file or tempfile.TemporaryFile(prefix="pretrace-chunks-")  # noqa: SIM115  (close)
            except OSError:
                self._full = True
                return False
            start, self._end = self._end, self._end + size
        try:
            make(lambda piece, place: _write(self._file.fileno(), piece, start + place))
        except OSError:
            self._full = True
            return False
        self._at[name] = start
        return True

    def close(self) -> None:
        """Gives the file back."""
        self._at.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(fd: int, piece: memoryview, offset: int) -> None:
    while len(piece):
        n = os.pwrite(fd, piece, offset)
        piece, offset = piece[n:], offset + n
