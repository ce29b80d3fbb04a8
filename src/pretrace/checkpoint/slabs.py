"""Large pieces of tensors whose elements lie scattered in the file, kept while small blocks are read from them.

A block of a transposed tensor takes a few elements of every row of its source, so reading block by block would pass over the
source many times. A slab of 8 MiB or more is gathered once and served in blocks; all views together keep three.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.spares import SPARES

SLAB_BYTES = 8 << 20  # of a small tensor; of a large one a sixteenth, so that its rows are not cut into crumbs
_LARGEST = 32 << 20
_KEPT = 3
_SHORT_RUN = 256  # elements: below this many in a row a tensor counts as scattered

Fill = Callable[[int, int, "NDArray[Any]"], None]  # fills the block with elements [start, stop)


class _Slab:
    """One slab: whoever comes first gathers it, the others wait for it and for no other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buffer: NDArray[np.uint8] | None = None


class _Shelf:
    """The newest slabs of all views."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str, int], _Slab] = OrderedDict()
        self._lock = threading.Lock()

    def slab(self, key: tuple[int, str, int]) -> _Slab:
        """The slab of a key (view, tensor, number), gathered or not yet; the oldest one leaves."""
        with self._lock:
            slab = self._kept.setdefault(key, _Slab())
            self._kept.move_to_end(key)
            leaving = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - _KEPT)]
        for left in leaving:
            _leave(left)
        return slab

    def forget(self, owner: int | None = None) -> None:
        """Drops the slabs of a view, or all."""
        with self._lock:
            leaving = [self._kept.pop(key) for key in [k for k in self._kept if owner is None or k[0] == owner]]
        for left in leaving:
            _leave(left)


def _leave(slab: _Slab) -> None:
    """Gives the buffer of a slab back, unless somebody reads it just now (then the last reader drops it)."""
    if slab.lock.acquire(blocking=False):
        if slab.buffer is not None:
            SPARES.give(slab.buffer)
            slab.buffer = None
        slab.lock.release()


_SHELF = _Shelf()  # memory belongs to the process, whoever opened the views


class Slabs:
    """The slabs of one view. Threads that want the same slab wait for one gathering."""

    def __init__(self) -> None:
        weakref.finalize(self, _SHELF.forget, id(self))

    def read(self, name: str, numel: int, start: int, stop: int, out: NDArray[Any], fill: Fill) -> None:
        """Fills `out` with elements [start, stop) of a tensor of `numel`, gathered by `fill`."""
        n = min(max(SLAB_BYTES, numel * out.itemsize // 16), max(SLAB_BYTES, _LARGEST)) // out.itemsize
        if stop - start >= min(n, numel):
            fill(start, stop, out)
            return
        for index in range(start // n, (stop - 1) // n + 1):
            first, last = index * n, min((index + 1) * n, numel)
            low, high = max(start, first), min(stop, last)
            slab = _SHELF.slab((id(self), name, index))
            with slab.lock:
                if slab.buffer is None:
                    slab.buffer = _gathered(first, last, out.dtype, fill)
                out[low - start : high - start] = slab.buffer.view(out.dtype)[low - first : high - first]

    def clear(self) -> None:
        """Drops what is kept."""
        _SHELF.forget(id(self))


def make_room() -> None:
    """Gives all slabs and waiting buffers back: something large is going to be held."""
    _SHELF.forget()
    SPARES.clear()


def _gathered(first: int, last: int, storage: np.dtype[Any], fill: Fill) -> NDArray[np.uint8]:
    buffer = SPARES.take((last - first) * storage.itemsize)
    fill(first, last, buffer[: (last - first) * storage.itemsize].view(storage))
    return buffer


def scattered(sizes: tuple[int, ...], source_strides: tuple[int, ...]) -> bool:
    """Whether a box is read in many short runs."""
    if len(sizes) < 2:
        return bool(sizes) and source_strides[-1] != 1
    return source_strides[-1] != 1 or sizes[-1] < _SHORT_RUN
