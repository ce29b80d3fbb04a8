"""Arrays of a chunked store (OCDBT), filled chunk by chunk: the same units as files have, the chunks written by tensorstore."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pretrace.checkpoint.chunked import Chunk, StoredArray
from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.store_write import Store, Wait
from pretrace.convert.direct import Key, hold
from pretrace.convert.engine import Advance, make_files, write_rest
from pretrace.convert.journal import Journal, Noting
from pretrace.convert.units import Unit, Work
from pretrace.errors import naming

_AHEAD = (
    1  # chunks that are compressed and committed, beside one for each thread that makes one: 8 MiB and what it becomes
)


@dataclass(frozen=True, slots=True)
class _Job:
    """One writing: where, and how many chunks may be in memory."""

    store: Store
    layout: StoreLayout
    work: Work
    room: threading.Semaphore
    advance: Advance

    def begin(self, held: Mapping[Key, NDArray[Any]], one: tuple[StoredArray, Chunk]) -> Wait:
        """Makes a chunk and starts to write it."""
        self.room.acquire()
        try:
            block = self._made(held, one[1])
            wait = self.store.begin(*one, block, self.room.release)
        except BaseException:
            self.room.release()  # the other threads would wait for it
            raise
        self.advance(block.nbytes)
        return wait

    def _made(self, held: Mapping[Key, NDArray[Any]], chunk: Chunk) -> NDArray[Any]:
        direct = self.work.directs.get(chunk.tensor) if held else None
        if direct is None:
            return self.layout.sources.read(chunk.tensor, chunk.start, chunk.stop)
        return direct.fill(held, chunk.start, chunk.stop)


def write_store(
    layout: StoreLayout, work: Work, folder: Path, threads: int, journal: Journal, advance: Advance
) -> None:
    """Writes files and arrays; what marks the save as whole is last. A second start goes on after the units that are done.

    A unit is noted when the database has it; meanwhile the next one is made.

    Raises
    ------
    PretraceError
        If a chunk cannot be read or written.
    """
    _files(layout, layout.first, folder, threads)
    job = _Job(Store(layout, folder, sync=False), layout, work, threading.Semaphore(threads + _AHEAD), advance)
    chunks: dict[str, list[tuple[StoredArray, Chunk]]] = {}
    for array, chunk in job.store.chunks():
        chunks.setdefault(chunk.tensor, []).append((array, chunk))
    advance(sum(unit.size_bytes for unit in work.units if unit.key in journal.done))
    begun: deque[tuple[Unit, list[Wait]]] = deque()
    with naming(folder, "writing"), ThreadPoolExecutor(threads) as pool, Noting(journal) as noting:
        for unit in (unit for unit in work.units if unit.key not in journal.done):
            held = hold({name: work.directs[name] for name in unit.tensors}, pool) if unit.kind == "held" else {}
            mine = [one for name in unit.tensors for one in chunks[name]]
            begun.append((unit, list(pool.map(partial(job.begin, held), mine))))
            if len(begun) > 1:
                _noted(noting, job.store, *begun.popleft())
        for unit, waits in begun:
            _noted(noting, job.store, unit, waits)
        noting.rest(lambda units: job.store.new_files())
    _files(layout, layout.last, folder, threads)


def _noted(noting: Noting, store: Store, unit: Unit, waits: list[Wait]) -> None:
    for wait in waits:
        wait()
    noting.wrote(unit, lambda units: store.new_files())


def _files(layout: StoreLayout, files: Any, folder: Path, threads: int) -> None:
    beside = Layout(layout.format, files, layout.sources)
    make_files(beside, folder)
    write_rest(beside, folder, threads)
