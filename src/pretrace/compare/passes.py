"""One pass over tensors in chunks, by several threads, into sums by block. What is computed does not see the threads.

A chunk is a whole number of blocks (the last one of a tensor may be short). Each thread has its own buffers, reads a chunk into
them and gives it to a kernel; memory is two or three chunks a thread, whatever the size of the tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.compare.ir import FORMATS
from pretrace.compare.plain import BLOCK
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

CHUNK = 8 * BLOCK  # elements: 1 MiB of bfloat16, which stays in the second-level cache
COMPILE_ABOVE = 1 << 24  # elements; below, numpy is done before a compiler would have started
WIDENED = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "float8_e8m0fnu": "float8_e8m0fnu"}

T = TypeVar("T")
Advance = Callable[[int], None]  # called with the bytes just read


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements [start, stop) of the tensor with this number; `start` is a multiple of BLOCK."""

    tensor: int
    start: int
    stop: int

    @property
    def blocks(self) -> slice:
        """The blocks of the tensor that the chunk covers."""
        return slice(self.start // BLOCK, -(-self.stop // BLOCK))


def chunks(sizes: Sequence[int], order: Iterable[int] | None = None) -> Iterator[Chunk]:
    """Cuts tensors of these numbers of elements, in their order or in the one that is given.

    >>> [(c.tensor, c.start, c.stop) for c in chunks([3, 0, 600_000])]
    [(0, 0, 3), (2, 0, 524288), (2, 524288, 600000)]
    """
    for tensor in range(len(sizes)) if order is None else order:
        for start in range(0, sizes[tensor], CHUNK):
            yield Chunk(tensor, start, min(start + CHUNK, sizes[tensor]))


def as_stored(names: Sequence[str], *views: StateView) -> list[int]:
    """The numbers of the names in an order in which layers of one stored tensor follow each other.

    What had to be decoded for one of them then serves the next. Of several views the one with the fewest stored tensors counts.
    """
    stored = min(([view.source(name)[0] for name in names] for view in views), key=lambda told: len(set(told)))
    return sorted(range(len(names)), key=stored.__getitem__)


def each(work: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Calls `work` on every item, from `threads` threads that take the next item when they are free."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    queue, lock = iter(items), threading.Lock()

    def drain() -> None:
        while True:
            with lock:
                item = next(queue, _END)
            if item is _END:
                return
            work(item)

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(drain) for _ in range(threads)]:
            future.result()


_END: Any = object()


class Reader:
    """Reads chunks of one view into buffers that each thread keeps."""

    def __init__(self, view: StateView) -> None:
        self.view = view
        self._own = threading.local()

    def read(self, name: str, chunk: Chunk) -> NDArray[Any]:
        """The stored elements of the chunk; the array is overwritten by the next call from the same thread."""
        storage = dtype(self.view.info(name).dtype).storage
        buffers: dict[str, NDArray[Any]] = self._own.__dict__.setdefault("buffers", {})
        if storage not in buffers:
            buffers[storage] = np.empty(CHUNK, storage)
        return self.view.read(name, chunk.start, chunk.stop, out=buffers[storage])


def common_format(a: str, b: str) -> str:
    """The format in which two dtypes are compared: their own, if it is one of the kernels'; else one that holds both exactly."""
    if a == b and a in FORMATS:
        return a
    return "float32" if {a, b} <= {"bfloat16", "float16", "float32", *WIDENED} else "float64"


def widen(block: NDArray[Any], name: str, to: str) -> NDArray[Any]:
    """A stored block as numbers of the format `to` (see `common_format`); exact but for 64-bit integers past 2^53."""
    if name == to:
        return block
    wide = np.float32 if to == "float32" else np.float64
    if name == "bfloat16":
        single: NDArray[Any] = (block.astype(np.uint32) << 16).view(np.float32)
        return single.astype(wide, copy=False)
    if name in WIDENED:
        looked_up: NDArray[Any] = _table(name)[block].astype(wide, copy=False)
        return looked_up
    if dtype(name).kind == "complex":
        raise PretraceError(f"{name} tensors are not compared as numbers", "", "compare their bytes")
    return block.astype(wide)


@lru_cache
def _table(name: str) -> NDArray[np.float32]:
    import ml_dtypes

    codes = np.arange(256, dtype=np.uint8)
    values: NDArray[np.float32] = codes.view(getattr(ml_dtypes, WIDENED[name])).astype(np.float32)
    return values
