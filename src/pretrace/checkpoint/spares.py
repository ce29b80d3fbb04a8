"""Large buffers that are used again.

The allocator would keep what they leave in holes (after a conversion some 100 MiB), and the kernel would clear each new one. So
they come from the kernel, wait here for the next use, and what waits is bounded.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

WAITING = 16 << 20  # bytes of buffers that wait for use
_SMALL = 1 << 18  # bytes: below, the allocator does as well
_STEP = 1 << 20  # bytes: sizes are rounded up to this, so that buffers fit the next use


class Spares:
    """Buffers that wait for use."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer of at least `size` bytes, whatever stands in it; a waiting one if it is not much too large."""
        if size < _SMALL:
            return np.empty(size, np.uint8)
        with self._lock:
            fitting = [k for k, spare in enumerate(self._waiting) if size <= spare.nbytes <= 2 * size + _STEP]
            if fitting:
                return self._waiting.pop(min(fitting, key=lambda k: self._waiting[k].nbytes))
        return np.frombuffer(
            mmap.mmap(-1, -(-size // _STEP) * _STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8
        )

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Takes back a buffer that nobody uses any more. The oldest ones go back to the kernel."""
        if buffer.nbytes < _SMALL:
            return
        with self._lock:
            self._waiting.append(buffer)
            while sum(spare.nbytes for spare in self._waiting) > self._most:
                self._waiting.pop(0)

    def clear(self) -> None:
        """Gives what waits back to the kernel."""
        with self._lock:
            self._waiting.clear()

    @contextmanager
    def scratch(self, n: int, storage: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """`n` elements for as long as the block lasts."""
        buffer = self.take(n * storage.itemsize)
        try:
            yield buffer[: n * storage.itemsize].view(storage)
        finally:
            self.give(buffer)


SPARES = Spares(WAITING)  # memory belongs to the process
