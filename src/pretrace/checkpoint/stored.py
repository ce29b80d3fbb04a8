"""Tensors that lie as plain bytes in files: what safetensors, torch storages, llm.c and raw chunks have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.links import Link, gather
from pretrace.checkpoint.sources import Source
from pretrace.checkpoint.view import Extent, TensorInfo, View
from pretrace.dtypes import dtype
from pretrace.findings import Finding


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's elements stand: `link` counts in elements from byte `offset` of the source; None: one run."""

    source: Source
    offset: int
    link: Link | None = None
    swapped: bool = False  # big-endian on the disk


class StoredView(View):
    """Named places in open files."""

    def __init__(self, format: str, tensors: Mapping[str, tuple[TensorInfo, Place]],
                 metadata: Mapping[str, Any] | None = None, findings: tuple[Finding, ...] = (),
                 check: Callable[[str], None] | None = None) -> None:  # fmt: skip
        """`check`, if given, is called with a tensor's name before its bytes are read and raises if they are damaged."""
        super().__init__({name: info for name, (info, _) in tensors.items()}, metadata, findings)
        self.format = format
        self._places = {name: place for name, (_, place) in tensors.items()}
        self._check = check

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        place = self._places[info.name]
        if self._check is not None:
            self._check(info.name)
        if place.link is None:
            read_run(place, start, block)
        else:
            run = _Run(place, block.dtype)
            gather(run, (place.link,), start, stop, block)

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """One run of bytes, unless the tensor is stored with strides or swapped bytes."""
        info, place = self.info(name), self._places[name]
        if place.link is not None or place.swapped:
            return None
        return (Extent(place.source.name, place.offset, info.size_bytes, 0),)

    def close(self) -> None:
        """Closes every file."""
        for source in {id(place.source): place.source for place in self._places.values()}.values():
            source.close()


@dataclass(frozen=True, slots=True)
class _Run:
    """Reads elements that follow each other, for `gather`."""

    place: Place
    storage: np.dtype[Any]

    def __call__(self, name: str, start: int, stop: int, out: NDArray[Any] | None) -> NDArray[Any]:
        block = np.empty(stop - start, self.storage) if out is None else out
        read_run(self.place, start, block)
        return block


def read_run(place: Place, start: int, block: NDArray[Any]) -> None:
    """Fills `block` with the elements that follow element `start` of the place."""
    if not block.size:
        return
    place.source.read_into(place.offset + start * block.itemsize, block.view(np.uint8).data)
    if place.swapped:
        block.byteswap(inplace=True)


def place_info(name: str, dtype_name: str, shape: tuple[int, ...], where: str) -> TensorInfo:
    """A `TensorInfo` whose dtype is known to exist."""
    return TensorInfo(name, dtype(dtype_name).name, shape, where)
