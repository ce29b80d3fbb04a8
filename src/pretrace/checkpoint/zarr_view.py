"""Arrays in zarr chunks as tensors, with the check that no peer makes: which chunks should be there and are not.

A chunk that is absent reads as zeros without an error, in tensorstore as in zarr itself. So the grid that shape and chunks ask
for is compared with the keys that are there, before any data is read.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from io import RawIOBase
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pretrace.checkpoint.chunk_room import ROOM, Spill
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.spares import SPARES
from pretrace.checkpoint.view import TensorInfo, View
from pretrace.checkpoint.zarr_array import ZarrArray
from pretrace.checkpoint.zarr_codec import chunk_bytes, decode_into, decode_to, in_file_order, wrong_size
from pretrace.checkpoint.zarr_keys import Keys
from pretrace.dtypes import dtype
from pretrace.findings import Finding

_LOCKS = 16  # chunks that are decoded side by side


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
    """Chunks as flat tensors. Raw ones are read in place; others are decoded, as little as possible of them in memory."""

    format = "zarr"

    def __init__(self, arrays: Mapping[str, ZarrArray], keys: Keys) -> None:
        infos = {}
        self._arrays: dict[str, tuple[ZarrArray, str]] = {}
        for array in arrays.values():
            for key in array.chunk_keys():
                name = f"{array.name}/{key}"
                infos[name] = TensorInfo(name, array.dtype, (math.prod(array.chunks),), keys.name)
                self._arrays[name] = (array, name if array.name else key)
        super().__init__(infos)
        self._keys = keys
        self._there = keys.listed()
        self._spill = Spill()
        self._decoding = [threading.Lock() for _ in range(_LOCKS)]
        weakref.finalize(self, _give_back, self._spill)

    def at_once(self, name: str) -> bool:
        """Whether the chunk has to be decoded as a whole."""
        array, key = self._arrays[name]
        return key in self._there and not in_file_order(array)

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        self.read_rows(info.name, start, stop - start, stop - start, block)

    def read_rows(self, name: str, start: int, step: int, width: int, out: NDArray[Any]) -> None:
        """Runs of `width` elements, each `step` after the one before, one after the other into `out`."""
        array, key = self._arrays[name]
        if key not in self._there:
            out[...] = 0  # as every reader of zarr does
        elif in_file_order(array) and (source := self._keys.file(key)) is not None:
            if source.size != chunk_bytes(array):
                raise wrong_size(source.size, array, source.name)
            _each_row(out, start, step, width, source.read_into)
        elif out.size == self._infos[name].numel:
            decode_into(*self._stored(name), out)
        elif (chunk := self._chunk(name, out.size)) is not None:
            rows = as_strided(chunk[start:], (out.size // width, width), (step * chunk.itemsize, chunk.itemsize))
            out.reshape(-1, width)[...] = rows
        else:
            _each_row(out, start, step, width, partial(self._spill.read, name))

    def _chunk(self, name: str, n: int) -> NDArray[Any] | None:
        """A decoded chunk of which `n` elements are wanted; None if it lies in the file."""
        array = self._arrays[name][0]
        with self._decoding[hash(name) % _LOCKS]:
            if (kept := ROOM.get(self._spill, name, n)) is not None:
                return kept
            size = chunk_bytes(array)
            if self._spill.has(name) or (
                2 * size > ROOM.budget and self._spill.fill(name, size, partial(decode_to, *self._stored(name)))
            ):
                return None
            made = SPARES.take(size)[:size].view(dtype(array.dtype).storage)
            decode_into(*self._stored(name), made)
            ROOM.put(self._spill, name, made, n)
            return made

    def _stored(self, name: str) -> tuple[ZarrArray, RawIOBase, str]:
        """A chunk as it is stored: its array, its bytes, and what to call it."""
        array, key = self._arrays[name]
        return array, self._keys.stream(key), f"{self._keys.name}: {key}"

    def close(self) -> None:
        """Gives the room and the files back."""
        _give_back(self._spill)
        self._keys.close()


def _give_back(spill: Spill) -> None:
    ROOM.forget(spill)
    spill.close()


def _each_row(out: NDArray[Any], start: int, step: int, width: int, read: Callable[[int, memoryview], None]) -> None:
    target, itemsize = out.view(np.uint8).data, out.itemsize
    size = width * itemsize
    for place in range(0, len(target), size):
        read(start * itemsize, target[place : place + size])
        start += step
