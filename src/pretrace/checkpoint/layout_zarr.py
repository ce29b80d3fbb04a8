"""Arrays in zarr chunks: how each is cut, and the files of those that are written raw.

An array's chunks follow each other in its own order. A stack of large layers is cut between the layers first, on whichever axis
they are stacked, and each layer in its own order: `kernel/2.5.0` is then a run of layer 5. Format: zarr-specs v2; bfloat16 as
tensorstore writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.chunked import StoredArray, chunk_shape
from pretrace.checkpoint.layout import RESAVE, Block, PlannedFile, known_file
from pretrace.checkpoint.links import Link, c_strides, normal, whole
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

LAYER_BYTES = 1 << 20  # of one layer: smaller ones stay together in one chunk, a file each would cost more than strides
_CODES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "bfloat16", "int32": "<i4", "int64": "<i8"}


@dataclass(frozen=True, slots=True)
class Arrays:
    """All arrays of a target, and the view of the tensors that their chunks are runs of."""

    arrays: tuple[StoredArray, ...]
    sources: StateView

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Stacked tensor -> its layers."""
        return {array.tensor: array.layers for array in self.arrays if array.layers}


def arrays_of(named: Mapping[str, str], stacked: Mapping[str, int], tensors: United, most: int) -> Arrays:
    """Cuts arrays (key -> tensor) in chunks of at most `most` bytes. `stacked`: the axis of the layers of those that are stacks.

    Raises
    ------
    PretraceError
        If zarr has no word for a dtype.
    """
    arrays: list[StoredArray] = []
    layers: dict[str, Wired] = {}
    for key, tensor in named.items():
        info = tensors.info(tensor)
        if info.dtype not in _CODES:
            raise PretraceError(f"arrays of {info.dtype} are not written into zarr", tensor, RESAVE)
        axis = stacked.get(tensor)
        if axis is None or info.size_bytes < info.shape[axis] * min(LAYER_BYTES, most):
            chunks = chunk_shape(info.shape, dtype(info.dtype).itemsize, most)
            arrays.append(StoredArray(key, tensor, info.dtype, info.shape, chunks))
        else:
            cut = [_layer(info, axis, k) for k in range(info.shape[axis])]
            layers |= {wired.info.name: wired for wired in cut}
            arrays.append(_in_layers(key, info, axis, tuple(wired.info.name for wired in cut), most))
    whole_ones = {n: Wired(tensors.info(n), (whole(n, tensors.info(n).shape),)) for n in tensors.names()}
    return Arrays(tuple(arrays), RewiredView(tensors, whole_ones | layers))


def _layer(info: TensorInfo, axis: int, k: int) -> Wired:
    """Layer k of a stack, as a tensor of its own."""
    shape = (*info.shape[:axis], *info.shape[axis + 1 :])
    strides = c_strides(info.shape)
    link = Link(info.name, shape, c_strides(shape), (*strides[:axis], *strides[axis + 1 :]), 0, k * strides[axis])
    return Wired(TensorInfo(f"{info.name}, layer {k}", info.dtype, shape, info.where), (normal(link),))


def _in_layers(key: str, info: TensorInfo, axis: int, layers: tuple[str, ...], most: int) -> StoredArray:
    chunks = list(chunk_shape((*info.shape[:axis], *info.shape[axis + 1 :]), dtype(info.dtype).itemsize, most))
    chunks.insert(axis, 1)
    return StoredArray(key, info.name, info.dtype, info.shape, tuple(chunks), layers, axis)


def zarr_metadata(array: StoredArray, compressor: dict[str, Any] | None) -> dict[str, Any]:
    """The `.zarray` of version 2, as tensorstore writes it."""
    return {
        "chunks": list(array.chunks), "compressor": compressor, "dimension_separator": ".", "dtype": _CODES[array.dtype],
        "fill_value": None, "filters": None, "order": "C", "shape": list(array.shape), "zarr_format": 2,
    }  # fmt: skip


def zarr_files(top: str, array: StoredArray) -> list[PlannedFile]:
    """An array as plain files: its metadata, and each chunk raw."""
    about = json.dumps(zarr_metadata(array, None), separators=(",", ":")).encode()
    files = [known_file(f"{top}{array.key}/.zarray", about)]
    itemsize = dtype(array.dtype).itemsize
    for chunk in array.placed:
        key = ".".join(map(str, chunk.index)) or "0"
        files.append(
            PlannedFile(f"{top}{array.key}/{key}", (Block(0, chunk.tensor, chunk.start, chunk.stop, itemsize),))
        )
    return files
