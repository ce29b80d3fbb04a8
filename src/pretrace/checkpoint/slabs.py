"""Large pieces of tensors whose elements lie scattered in the file, kept while small blocks are read from them.

A block of a transposed tensor takes a few elements of every row of its source, so reading block by block would pass over the
source many times. A slab of 16 MiB is gathered once and served in blocks; two of them are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLAB_BYTES = 16 << 20
_KEPT = 2
_SHORT_RUN = 256  # elements: below this many in a row a tensor counts as scattered

Fill = Callable[[int, int, "NDArray[Any]"], None]  # fills the block with elements [start, stop)


class _Slab:
    """One slab: whoever comes first gathers it, the others wait for it and for no other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.elements: NDArray[Any] | None = None


class Slabs:
    """The newest slabs of one view. Threads that want the same slab wait for one gathering."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Slab] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, numel: int, start: int, stop: int, out: NDArray[Any], fill: Fill) -> None:
        """Fills `out` with elements [start, stop) of a tensor of `numel`, gathered by `fill`."""
        n = SLAB_BYTES // out.itemsize
        if stop - start >= min(n, numel):
            fill(start, stop, out)
            return
        for index in range(start // n, (stop - 1) // n + 1):
            first = index * n
            slab = self._slab(name, index, first, min(first + n, numel), out.dtype, fill)
            low, high = max(start, first), min(stop, first + slab.size)
            out[low - start : high - start] = slab[low - first : high - first]

    def _slab(self, name: str, index: int, first: int, last: int, storage: np.dtype[Any], fill: Fill) -> NDArray[Any]:
        with self._lock:
            slab = self._kept.setdefault((name, index), _Slab())
            self._kept.move_to_end((name, index))
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        with slab.lock:
            if slab.elements is None:
                elements = np.empty(last - first, storage)
                fill(first, last, elements)
                slab.elements = elements
            return slab.elements


def scattered(sizes: tuple[int, ...], source_strides: tuple[int, ...]) -> bool:
    """Whether a box is read in many short runs."""
    if len(sizes) < 2:
        return bool(sizes) and source_strides[-1] != 1
    return source_strides[-1] != 1 or sizes[-1] < _SHORT_RUN
