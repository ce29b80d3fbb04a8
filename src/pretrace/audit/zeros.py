"""Zero regions with their geometry: which slices of which axis hold nothing, and how that lies against equal parts.

A lost part of a checkpoint is usually a block of exact zeros: the share of hosts that did not write, a range of pages that
never reached the disk. Trained or freshly drawn weights have no such blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.compare.plain import BLOCK

SHORTEST_RUN = 512  # consecutive zero elements that are called a hole
PARTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class Region:
    """Slices [start, stop) of an axis that hold only zeros; axis -1: a range of the flattened tensor."""

    axis: int
    start: int
    stop: int
    size: int  # of the axis

    @property
    def share(self) -> float:
        """The part of the tensor that the region covers."""
        return (self.stop - self.start) / self.size

    @property
    def parts(self) -> tuple[int, int, int] | None:
        """(first, last, count) if the region is parts first..last of `count` equal ones; the fewest that fit.

        >>> Region(1, 16, 64, 64).parts
        (1, 3, 4)
        """
        for count in PARTS:
            lo, hi = Fraction(self.start * count, self.size), Fraction(self.stop * count, self.size)
            if self.size % count == 0 and lo.denominator == hi.denominator == 1:
                return int(lo), int(hi) - 1, count
        return None

    @property
    def geometry(self) -> tuple[object, ...]:
        """Equal for regions that lie alike in tensors of different sizes."""
        return (self.axis, self.parts) if self.parts else (self.axis, self.start / self.size, self.stop / self.size)


def regions(view: StateView, info: TensorInfo, zeros_by_block: NDArray[np.int64]) -> list[Region]:
    """The zero regions of one tensor: whole slices of an axis, else holes of the flattened tensor. Reads only where needed."""
    total = int(zeros_by_block.sum())
    if total < min(SHORTEST_RUN, max(8, info.numel // 8)) or total == info.numel:
        return (
            [Region(0, 0, info.shape[0] if info.shape else 1, info.shape[0] if info.shape else 1)]
            if 0 < info.numel == total
            else []
        )
    found = list(_slices(view, info, total)) if len(info.shape) >= 1 else []
    return found or list(_holes(view, info, zeros_by_block))


def _slices(view: StateView, info: TensorInfo, total: int) -> Iterator[Region]:
    """Runs of all-zero slices along every axis."""
    shape = info.shape
    smallest = min(info.numel // n for n in shape)
    if total < smallest:
        return
    used = [np.zeros(n, dtype=bool) for n in shape]  # whether any element with this index is not zero
    width = info.numel // shape[0]
    step = max(1, _ELEMENTS // width)
    for first in range(0, shape[0], step):
        last = min(first + step, shape[0])
        block = nonzero(view.read(info.name, first * width, last * width), info.dtype).reshape(last - first, *shape[1:])
        used[0][first:last] = block.reshape(last - first, -1).any(axis=1)
        rest = block.any(axis=0)
        for axis in range(1, len(shape)):
            others = tuple(k for k in range(len(shape) - 1) if k != axis - 1)
            used[axis] |= np.any(rest, axis=others)
    for axis, mask in enumerate(used):
        for start, stop in runs(~mask):
            if len(shape) > 1 or stop - start >= max(8, shape[0] // 8):
                yield Region(axis, start, stop, shape[axis])


def _holes(view: StateView, info: TensorInfo, zeros_by_block: NDArray[np.int64]) -> Iterator[Region]:
    """Runs of at least SHORTEST_RUN zeros in the flattened tensor."""
    open_at = -1
    for block in np.flatnonzero(zeros_by_block >= SHORTEST_RUN // 2).tolist():
        start, stop = block * BLOCK, min((block + 1) * BLOCK, info.numel)
        mask = ~nonzero(view.read(info.name, start, stop), info.dtype)
        for lo, hi in runs(mask):
            lo, hi = lo + start, hi + start
            if open_at >= 0 and lo == start:
                lo = open_at
            open_at = -1
            if (
                hi == stop
                and stop < info.numel
                and stop // BLOCK < zeros_by_block.size
                and zeros_by_block[stop // BLOCK]
            ):
                open_at = lo
            elif hi - lo >= SHORTEST_RUN:
                yield Region(-1, lo, hi, info.numel)


def nonzero(block: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    """Which stored elements are not zero of either sign."""
    if dtype == "bfloat16":
        block = block.view(np.uint16) & np.uint16(0x7FFF)
    elif dtype.startswith("float8"):  # the sign is the highest bit
        block = block.view(np.uint8) & np.uint8(0x7F)
    mask: NDArray[np.bool_] = block != 0
    return mask


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The [start, stop) of every run of True.

    >>> runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def on_pages(view: StateView, region: Region, info: TensorInfo) -> int:
    """The page size (4096, 65536, ...) that a hole is aligned to in its file, 0 if none or not known."""
    extents = view.extents(info.name)
    if region.axis != -1 or not extents or not info.numel:
        return 0
    width = info.size_bytes // info.numel
    edges = []
    for extent in extents:
        for at in (region.start, region.stop):
            inside = (at - extent.first) * width
            if 0 <= inside <= extent.size_bytes and at not in (0, info.numel):
                edges.append(extent.offset + inside)
    aligned = math.gcd(*edges) if edges else 0
    return next((page for page in (1 << 20, 1 << 16, 1 << 12) if aligned and aligned % page == 0), 0)


def common(found: Sequence[tuple[TensorInfo, Region]]) -> dict[tuple[object, ...], list[tuple[TensorInfo, Region]]]:
    """Regions that lie alike, together; the most frequent geometry first."""
    groups: dict[tuple[object, ...], list[tuple[TensorInfo, Region]]] = {}
    for info, region in found:
        groups.setdefault(region.geometry, []).append((info, region))
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
