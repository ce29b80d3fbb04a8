"""Writes the arrays of a `StoreLayout` into OCDBT through tensorstore, chunk by chunk: the plain way, and the piece for engines.

tensorstore comes with the extra `convert`. A chunk is read from the sources, compressed (zstd, level 1, as Orbax does) and
committed; several threads may write chunks of one store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pretrace.checkpoint.chunked import Chunk, StoredArray
from pretrace.checkpoint.fill import Progress, write_layout
from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.layout_zarr import zarr_metadata
from pretrace.checkpoint.zarr_array import tensorstore
from pretrace.errors import PretraceError

_COMPRESSOR = {"id": "zstd", "level": 1}
_LOCK = ".__lock"  # behind the name of a file that is being written
Wait = Callable[[], None]


class Store:
    """An OCDBT database below a target folder, open for writing: a new one, or what a killed writer left of the same."""

    def __init__(self, layout: StoreLayout, folder: str | Path, *, sync: bool = True) -> None:
        """Makes the folder of the store; `folder` is the target, which exists.

        Without `sync` a commit does not wait for the disk: what `new_files` lists is the caller's to bring there.

        Raises
        ------
        PretraceError
            If tensorstore is not installed, or the database cannot be made.
        """
        self._ts = tensorstore(str(folder))
        self._layout = layout
        self.path = Path(folder) / layout.store
        self.path.mkdir(parents=True, exist_ok=True)
        self._context = self._ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_sync": sync})
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._listed: set[Path] = set()
        for left in self.path.rglob(f"*{_LOCK}"):  # by a process that was killed while it committed
            left.unlink()

    def chunks(self) -> Iterator[tuple[StoredArray, Chunk]]:
        """Every chunk of every array."""
        for array in self._layout.arrays:
            yield from ((array, chunk) for chunk in array.placed)

    def begin(self, array: StoredArray, chunk: Chunk, block: NDArray[Any], done: Callable[[], None]) -> Wait:
        """Starts to compress and commit a chunk; `done` is called when it is no longer in memory, `Wait` waits for the commit.

        Chunks that are begun together are committed together.
        """
        data = self._typed(array, block).reshape(array.chunks)
        where = tuple(slice(i * c, (i + 1) * c) for i, c in zip(chunk.index, array.chunks, strict=True))
        with self._naming(array):
            writing = self._array(array)[where].write(data)
        writing.commit.add_done_callback(lambda _: done())

        def wait() -> None:
            with self._naming(array):
                writing.result()

        return wait

    def write(self, array: StoredArray, chunk: Chunk) -> int:
        """Writes one chunk; returns its bytes before compression.

        Raises
        ------
        PretraceError
            If the chunk cannot be read or written (disk full, no permission).
        """
        block = self._layout.sources.read(chunk.tensor, chunk.start, chunk.stop)
        self.begin(array, chunk, block, lambda: None)()
        return block.nbytes

    def new_files(self) -> list[Path]:
        """The files that commits have made since this was asked last, and the manifest, which every commit writes anew."""
        made = [path for path in self.path.glob("d/*") if path not in self._listed and path.suffix != _LOCK]
        self._listed.update(made)
        return [*made, self.path / "manifest.ocdbt"]

    @contextmanager
    def _naming(self, array: StoredArray) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            what = f"{array.key} cannot be written: {_said(error)}"
            raise PretraceError(what, str(self.path), "free some room or choose another place") from None

    def _typed(self, array: StoredArray, block: Any) -> Any:
        if array.dtype != "bfloat16":
            return block
        import ml_dtypes

        return block.view(ml_dtypes.bfloat16)

    def _array(self, array: StoredArray) -> Any:
        with self._lock:
            if array.key not in self._open:
                spec = {
                    "driver": "zarr",
                    "kvstore": {"driver": "ocdbt", "base": f"file://{self.path.absolute()}/", "path": f"{array.key}/"},
                    "metadata": zarr_metadata(array, _COMPRESSOR),
                    "store_data_equal_to_fill_value": True,
                }
                with self._naming(array):
                    self._open[array.key] = self._ts.open(spec, context=self._context, create=True, open=True).result()
            return self._open[array.key]


def _said(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def write_store(layout: StoreLayout, folder: str | Path, *, progress: Progress | None = None) -> None:
    """Writes a whole `StoreLayout` below an existing folder, one chunk after the other; what marks it as whole is last.

    Raises
    ------
    PretraceError
        If a tensor cannot be read or a chunk cannot be written; then the marks are missing.
    """
    write_layout(Layout(layout.format, layout.first, layout.sources), folder)
    store, done = Store(layout, folder), 0
    report: Callable[[int], None] = progress or (lambda n: None)
    for array, chunk in store.chunks():
        done += store.write(array, chunk)
        report(done)
    write_layout(Layout(layout.format, layout.last, layout.sources), folder)
