"""Arrays of a chunked store (OCDBT), filled chunk by chunk: the same units as files have, the chunks written by tensorstore."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pretrace.checkpoint.chunked import Chunk, StoredArray
from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.store_write import Store
from pretrace.checkpoint.view import StateView, TensorInfo, View
from pretrace.convert.direct import Key, hold
from pretrace.convert.engine import Advance, Journal, make_files, write_rest
from pretrace.convert.units import Work


class HeldView(View):
    """The tensors of a layout, made of stored tensors that are in memory where they are, else read through the views."""

    def __init__(self, base: StateView, work: Work) -> None:
        super().__init__({name: base.info(name) for name in base.names()}, base.metadata())
        self.format, self.base, self._work = base.format, base, work
        self.held: dict[Key, NDArray[Any]] = {}

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        made = self._work.directs.get(info.name)
        if made is not None and all(name in self.held for name in made.stored):
            block[...] = made.fill(self.held, start, stop)
        else:
            self.base.read(info.name, start, stop, block)


def write_store(
    layout: StoreLayout, work: Work, folder: Path, threads: int, journal: Journal, advance: Advance
) -> None:
    """Writes files and arrays; what marks the save as whole is last. A second start goes on after the arrays that are done.

    Raises
    ------
    PretraceError
        If a chunk cannot be read or written.
    """
    _files(layout, layout.first, folder, threads)
    sources = HeldView(layout.sources, work)
    store = Store(replace(layout, sources=sources), folder)
    chunks: dict[str, list[tuple[StoredArray, Chunk]]] = {}
    for array, chunk in store.chunks():
        chunks.setdefault(chunk.tensor, []).append((array, chunk))
    with ThreadPoolExecutor(threads) as pool:
        for unit in work.units:
            if unit.key not in journal.done:
                if unit.kind == "held":
                    sources.held = hold({name: work.directs[name] for name in unit.tensors}, pool)
                list(pool.map(lambda chunk: store.write(*chunk), (c for name in unit.tensors for c in chunks[name])))
                sources.held = {}
                journal.note((unit,))
            advance(unit.size_bytes)
    _files(layout, layout.last, folder, threads)


def _files(layout: StoreLayout, files: Any, folder: Path, threads: int) -> None:
    beside = Layout(layout.format, files, layout.sources)
    make_files(beside, folder)
    write_rest(beside, folder, threads)
