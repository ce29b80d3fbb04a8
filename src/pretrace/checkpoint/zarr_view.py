"""Arrays in zarr chunks as tensors, with the check that no peer makes: which chunks should be there and are not.

A chunk that is absent reads as zeros without an error, in tensorstore as in zarr itself. So the grid that shape and chunks ask
for is compared with the keys that are there, before any data is read.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.view import TensorInfo, View
from pretrace.checkpoint.zarr_array import ZarrArray
from pretrace.checkpoint.zarr_keys import Keys
from pretrace.dtypes import dtype
from pretrace.findings import Finding

MEMORY = 128 << 20  # bytes of decoded chunks that are kept in memory


class ZarrView(RewiredView):
    """Whole arrays, read through their chunks."""

    def __init__(
        self,
        format: str,
        arrays: Mapping[str, ZarrArray],
        keys: Keys,
        metadata: Mapping[str, Any],
        findings: tuple[Finding, ...],
        files: tuple[str, ...],
    ) -> None:
        """`arrays` maps the name of a tensor to its array; `files` are those that hold chunks."""
        base = _ChunkView(arrays, keys)
        wired = {}
        for name, array in arrays.items():
            links = tuple(array.link(f"{array.name}/{key}", index) for key, index in array.chunk_keys().items())
            info = TensorInfo(name, array.dtype, array.shape, f"{keys.name}/{array.name}")
            wired[name] = Wired(info, links if info.numel else (), "chunks joined" if len(links) > 1 else "")
        super().__init__(base, wired, metadata)
        self.having(findings)
        self._arrays = dict(arrays)
        self._there = keys.listed()
        self.format = format
        self._files = files

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The array itself: chunks are how it is stored, not names."""
        self.info(name)
        return (name,), ""

    def array(self, name: str) -> ZarrArray:
        """How the array is stored."""
        self.info(name)
        return self._arrays[name]

    def absent(self, name: str) -> set[tuple[int, ...]]:
        """The places in the grid of the chunks that are not there."""
        array = self.array(name)
        start = f"{array.name}/" if array.name else ""
        return {index for key, index in array.chunk_keys().items() if start + key not in self._there}

    def files(self) -> tuple[str, ...]:
        """The files that hold chunks: of a zarr folder each its own, of OCDBT those of the database."""
        return self._files


class _ChunkView(View):
    """Decoded chunks as flat tensors. The newest stay in memory, older ones in an unnamed file: each is decoded once."""

    format = "zarr"

    def __init__(self, arrays: Mapping[str, ZarrArray], keys: Keys) -> None:
        infos = {}
        self._arrays: dict[str, tuple[ZarrArray, str]] = {}
        for array in arrays.values():
            for key in array.chunk_keys():
                name = f"{array.name}/{key}"
                infos[name] = TensorInfo(name, array.dtype, (math.prod(array.chunks),), keys.name)
                self._arrays[name] = (array, f"{array.name}/{key}" if array.name else key)
        super().__init__(infos)
        self._keys = keys
        self._there = keys.listed()
        self._memory: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._held = 0
        self._spilled: dict[str, int] = {}
        self._file: Any = None
        self._end = 0
        self._lock = threading.Lock()

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        with self._lock:
            if info.name in self._spilled and info.name not in self._memory:
                self._file.seek(self._spilled[info.name] + start * block.itemsize)
                self._file.readinto(block.view(np.uint8).data)
                return
            block[...] = self._chunk(info.name)[start:stop]

    def _chunk(self, name: str) -> NDArray[Any]:
        if name in self._memory:
            self._memory.move_to_end(name)
            return self._memory[name]
        array, key = self._arrays[name]
        if key in self._there:
            chunk = array.decode(self._keys.read(key), f"{self._keys.name}: {key}")
        else:
            chunk = np.zeros(
                math.prod(array.chunks), np.dtype(dtype(array.dtype).storage)
            )  # as every reader of zarr does
        self._memory[name] = chunk
        self._held += chunk.nbytes
        while self._held > MEMORY and len(self._memory) > 1:
            self._spill(*self._memory.popitem(last=False))
        return chunk

    def _spill(self, name: str, chunk: NDArray[Any]) -> None:
        self._held -= chunk.nbytes
        if name in self._spilled:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="pretrace-chunks-")  # noqa: SIM115  (closed by close)
        self._file.seek(self._end)
        self._file.write(chunk.view(np.uint8).data)
        self._spilled[name] = self._end
        self._end += chunk.nbytes

    def close(self) -> None:
        """Gives the room back."""
        self._memory.clear()
        if self._file is not None:
            self._file.close()
