"""How the elements of one tensor lie in another: pure index arithmetic, and the one engine that reads through it.

A `Link` is a box of elements with a stride per axis on both sides:

    target[target_offset + sum(i * target_strides)] = source[source_offset + sum(i * source_strides)]    for i in box

A transpose, a split of fused QKV, a rotary re-pairing, a layer of a stacked array, a tensor-parallel shard and a chunk of a
distributed save are all links, so every layout is read in blocks by the same forty lines, and in both directions (a
link turned around is its inverse). The plain version is `plain_copy`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from pretrace.checkpoint.spares import SPARES
from pretrace.checkpoint.tiles import copy_box

Read = Callable[[str, int, int, "NDArray[Any] | None"], NDArray[Any]]  # as `StateView.read`
# (name, first element, elements from one run to the next, elements of a run, all runs one after the other)
Rows = Callable[[str, int, int, int, "NDArray[Any]"], None]

_SCRATCH = 8 << 20  # elements of a box that are put in order in memory of its own
_SMALL = 1 << 16  # elements: one read of this many costs less than several short ones


@dataclass(frozen=True, slots=True)
class Link:
    """A box of elements: sizes of its axes, and where each axis steps in target and source. Strides count elements."""

    source: str
    sizes: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_offset: int = 0
    source_offset: int = 0

    @property
    def numel(self) -> int:
        """Elements of the box."""
        return math.prod(self.sizes)

    @property
    def target_span(self) -> int:
        """Elements of the target from the first to the last of the box, gaps included."""
        return _span(self.sizes, self.target_strides)

    @property
    def source_span(self) -> int:
        """Elements of the source from the first to the last of the box, gaps included."""
        return _span(self.sizes, self.source_strides)

    def turned(self, source: str) -> Link:
        """The inverse: what was the target, now called `source`, is read into what was the source."""
        return normal(
            Link(source, self.sizes, self.source_strides, self.target_strides, self.source_offset, self.target_offset)
        )

    def slab(self, axis: int, start: int, stop: int) -> Link:
        """The part of the box with `start <= i < stop` on one axis."""
        sizes = (*self.sizes[:axis], stop - start, *self.sizes[axis + 1 :])
        return replace(self, sizes=sizes, target_offset=self.target_offset + start * self.target_strides[axis],
                       source_offset=self.source_offset + start * self.source_strides[axis])  # fmt: skip

    def at(self, index: int) -> Link:
        """The box without its first axis, at `index` of it."""
        return Link(self.source, self.sizes[1:], self.target_strides[1:], self.source_strides[1:],
                    self.target_offset + index * self.target_strides[0],
                    self.source_offset + index * self.source_strides[0])  # fmt: skip


def whole(source: str, shape: tuple[int, ...]) -> Link:
    """All of a tensor, as it is."""
    n = math.prod(shape)
    return Link(source, (n,), (1,), (1,))


def c_strides(shape: Iterable[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for n in reversed(tuple(shape)):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def box(source: str, shape: tuple[int, ...], offsets: tuple[int, ...], part: tuple[int, ...]) -> Link:
    """A whole source tensor of shape `part` standing at `offsets` in a target of shape `shape` (a shard, a chunk)."""
    strides = c_strides(shape)
    at = sum(o * s for o, s in zip(offsets, strides, strict=True))
    return normal(Link(source, part, strides, c_strides(part), target_offset=at))


def normal(link: Link) -> Link:
    """The same box with axes in descending target stride, axes of size 1 dropped and neighbours joined where they can be."""
    axes = sorted(
        (axis for axis in zip(link.target_strides, link.sizes, link.source_strides) if axis[1] != 1), reverse=True
    )
    joined: list[tuple[int, int, int]] = []
    for t, n, s in axes:
        if joined and joined[-1][0] == t * n and joined[-1][2] == s * n:
            joined[-1] = (t, n * joined[-1][1], s)
        else:
            joined.append((t, n, s))
    return replace(link, sizes=tuple(a[1] for a in joined), target_strides=tuple(a[0] for a in joined),
                   source_strides=tuple(a[2] for a in joined))  # fmt: skip


def clip(link: Link, start: int, stop: int) -> Iterator[Link]:
    """The parts of a normal link whose targets lie in [start, stop), each again a box."""
    low = link.target_offset
    if link.numel == 0 or stop <= low or low + link.target_span <= start:
        return
    if start <= low and low + link.target_span <= stop:
        yield link
        return
    stride, inner = link.target_strides[0], _span(link.sizes[1:], link.target_strides[1:])
    first = max(0, -((low - start) // stride))  # first index that starts inside
    last = min(link.sizes[0], (stop - low - inner) // stride + 1)  # one past the last that ends inside
    if first < last:
        yield link.slab(0, first, last)
    for index in sorted({first - 1, max(last, first - 1)}):  # at most two are cut by the ends
        if 0 <= index < link.sizes[0] and not first <= index < last:
            yield from clip(link.at(index), start, stop)


def gather(
    read: Read, links: Iterable[Link], start: int, stop: int, out: NDArray[Any], rows: Rows | None = None
) -> None:
    """Fills `out` with elements [start, stop) of the target that the normal `links` describe.

    `rows` reads many runs of one length in one call, where the source can.
    """
    for link in links:
        for part in clip(link, start, stop):
            _fill(read, rows, normal(replace(part, target_offset=part.target_offset - start)), out)


def _fill(read: Read, rows: Rows | None, link: Link, out: NDArray[Any]) -> None:
    n = link.numel
    begin, span = link.source_offset, link.source_span
    if link.target_strides in ((), (1,)) and link.source_strides in ((), (1,)):
        read(link.source, begin, begin + n, out[link.target_offset : link.target_offset + n])
    elif span <= max(2 * n, _SMALL):
        with SPARES.scratch(span, out.dtype) as scratch:
            read(link.source, begin, begin + span, scratch)
            copy_box(scratch, out[link.target_offset :], link.sizes, link.target_strides, link.source_strides)
    elif rows is not None and _is_rows(link):
        width, step = link.sizes[1], link.source_strides[0]
        rows(link.source, begin, step, width, out[link.target_offset : link.target_offset + n])
    elif n <= _SCRATCH and (packed := _packed(link)) is not None:
        # Read run by run in the source's order, and put in order in memory.
        with SPARES.scratch(n, out.dtype) as scratch:
            _fill(read, rows, packed, scratch)
            copy_box(scratch, out[link.target_offset :], link.sizes, link.target_strides, _packed_strides(link))
    else:
        # Too many gaps: halve along the axis that steps furthest in the source.
        axis = max(range(len(link.sizes)), key=lambda k: link.source_strides[k])
        half = link.sizes[axis] // 2
        _fill(read, rows, normal(link.slab(axis, 0, half)), out)
        _fill(read, rows, normal(link.slab(axis, half, link.sizes[axis])), out)


def _is_rows(link: Link) -> bool:
    """Whether the box is rows of the source, each a run, one after the other in the target."""
    return len(link.sizes) == 2 and link.target_strides == (link.sizes[1], 1) and link.source_strides[1] == 1


def _packed(link: Link) -> Link | None:
    """The same elements in the order of the source, without gaps; None if the box is in that order or has no runs."""
    ordered = sorted(link.source_strides, reverse=True)
    if ordered[-1] != 1 or list(link.source_strides) == ordered:
        return None
    return normal(replace(link, target_strides=_packed_strides(link), target_offset=0))


def _packed_strides(link: Link) -> tuple[int, ...]:
    """Row-major strides of the box with its axes in descending source stride."""
    order = sorted(range(len(link.sizes)), key=lambda k: -link.source_strides[k])
    steps = c_strides(link.sizes[k] for k in order)
    return tuple(steps[order.index(k)] for k in range(len(link.sizes)))


def plain_copy(link: Link, source: NDArray[Any], target: NDArray[Any]) -> None:
    """Element by element: the specification of `gather`."""
    for index in itertools.product(*map(range, link.sizes)):
        to = link.target_offset + sum(i * s for i, s in zip(index, link.target_strides))
        of = link.source_offset + sum(i * s for i, s in zip(index, link.source_strides))
        target[to] = source[of]


def _span(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((n - 1) * s for n, s in zip(sizes, strides)) + 1 if math.prod(sizes) else 0
