"""The work of writing a layout as a list of units, before any of it is done.

A unit is a set of target tensors that come from the same stored tensors, so that each stored tensor is read once. Three kinds:
`copy` (the bytes lie in a file as they will lie in the target: the kernel copies them), `held` (the stored tensors are held in
memory and the target is filled block by block), `plain` (read block by block through the views: sums, residuals, giants).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pretrace.checkpoint.layout import Block, Layout, StoreLayout
from pretrace.checkpoint.view import Extent, StateView
from pretrace.convert.direct import Direct, direct

HOLD_BYTES = 2 << 30  # stored tensors of one unit that are held in memory; beyond that, the plain way
_STACK_BYTES = 64 << 20  # or twice the target tensor: what a stored tensor may have to be held for its parts
_FEW_BYTES = 16 << 20  # small tensors go together: a unit has a price of its own, and all threads work on one
_COPY_BYTES = 64 << 20  # tensors that are only copied go to all threads at once
_PARTS = 64  # but there are enough units for several writers

Kind = Literal["copy", "held", "plain"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Target tensors that are written together."""

    kind: Kind
    tensors: tuple[str, ...]
    size_bytes: int  # of the target tensors
    held_bytes: int  # of the stored tensors in memory meanwhile

    @property
    def key(self) -> str:
        """A short name for the journal."""
        return hashlib.sha256("\n".join((self.kind, *self.tensors)).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Work:
    """All units of a layout, and what is known of each tensor."""

    units: tuple[Unit, ...]
    directs: Mapping[str, Direct]
    extents: Mapping[str, tuple[Extent, ...]]
    places: Mapping[str, tuple[tuple[str, Block], ...]]  # tensor -> (file below the target, its piece)

    @property
    def held_bytes(self) -> int:
        """The most that any unit holds."""
        return max((unit.held_bytes for unit in self.units), default=0)


def work_of(layout: Layout | StoreLayout, hold_bytes: int = HOLD_BYTES) -> Work:
    """Plans the writing of all tensors of a layout."""
    sources = layout.sources
    places = _places(layout) if isinstance(layout, Layout) else {}
    names = (
        tuple(places) if isinstance(layout, Layout) else tuple(name for array in layout.arrays for name in array.runs)
    )
    lying = {n: runs for n in names if (runs := _local(sources, n))}
    extents = (
        {} if isinstance(layout, StoreLayout) else lying
    )  # a store's chunks are no bytes of a file, but need not be held
    directs = {n: made for n in names if n not in lying and (made := direct(sources, n)) is not None}
    units = [_unit("copy", (n,), sources, 0) for n in extents]
    for group in sharing({name: made.stored for name, made in directs.items()}):
        bases = {key: directs[n].base for n in group for key in directs[n].stored}
        held = sum(base.info(key[1]).size_bytes for key, base in bases.items())
        largest = max(sources.info(n).size_bytes for n in group)
        # A stack of many layers is not held for the sake of one: it is read run by run.
        kind: Kind = "held" if held <= min(hold_bytes, max(_STACK_BYTES, 2 * largest)) else "plain"
        units.append(_unit(kind, group, sources, held if kind == "held" else 0))
    units += (_unit("plain", (n,), sources, 0) for n in names if n not in extents and n not in directs)
    share = sum(unit.size_bytes for unit in units) // _PARTS
    few: dict[Kind, int] = {
        "copy": min(_COPY_BYTES, share),
        "held": min(_FEW_BYTES, share),
        "plain": min(_FEW_BYTES, share),
    }
    return Work(tuple(_few_together(units, few)), directs, extents, places)


def share_of(units: Sequence[Unit], hosts: int, host: int) -> tuple[Unit, ...]:
    """The units of one of several writers: the largest first, each to the writer that has the least so far."""
    load = [0] * hosts
    mine = []
    for unit in sorted(units, key=lambda u: (-u.size_bytes, u.key)):
        least = load.index(min(load))
        load[least] += unit.size_bytes + 1
        if least == host:
            mine.append(unit)
    return tuple(mine)


def _places(layout: Layout) -> dict[str, tuple[tuple[str, Block], ...]]:
    found: dict[str, list[tuple[str, Block]]] = {}
    for file in layout.files:
        for piece in file.pieces:
            if isinstance(piece, Block):
                found.setdefault(piece.tensor, []).append((file.path, piece))
    return {name: tuple(pieces) for name, pieces in found.items()}


def _local(sources: StateView, name: str) -> tuple[Extent, ...] | None:
    runs = sources.extents(name)
    if not runs or any("://" in run.file for run in runs):
        return None
    return runs if sum(run.size_bytes for run in runs) == sources.info(name).size_bytes else None


def _unit(kind: Kind, names: Iterable[str], sources: StateView, held: int) -> Unit:
    listed = tuple(names)
    return Unit(kind, listed, sum(sources.info(n).size_bytes for n in listed), held)


def sharing(stored: Mapping[str, Sequence[Hashable]]) -> list[tuple[str, ...]]:
    """Names in groups that share no stored tensor with another group, in order.

    >>> sharing({"a": ("x",), "b": ("y",), "c": ("x", "z"), "d": ()})
    [('a', 'c'), ('b',), ('d',)]
    """
    leader: dict[Hashable, str] = {}  # stored tensor -> first name of its group
    group_of: dict[str, list[str]] = {}
    for name, needed in stored.items():
        met = list(dict.fromkeys(leader[s] for s in needed if s in leader))
        first = met[0] if met else name
        members = group_of.setdefault(first, [])
        for other in met[1:]:
            moved = group_of.pop(other)
            members += moved
            leader |= {s: first for n in moved for s in stored[n]}
        members.append(name)
        leader |= dict.fromkeys(needed, first)
    return [tuple(names) for names in group_of.values()]


def _few_together(units: Iterable[Unit], few: Mapping[Kind, int]) -> list[Unit]:
    """Small units of a kind in common ones of about `few` bytes of it."""
    made: list[Unit] = []
    small: dict[Kind, Unit] = {}
    for unit in units:
        if unit.size_bytes + unit.held_bytes >= few[unit.kind]:
            made.append(unit)
            continue
        before = small.get(unit.kind)
        joined = unit if before is None else _joined(before, unit)
        if joined.size_bytes >= few[unit.kind]:
            made.append(joined)
            small.pop(unit.kind, None)
        else:
            small[unit.kind] = joined
    return made + list(small.values())


def _joined(a: Unit, b: Unit) -> Unit:
    return Unit(a.kind, a.tensors + b.tensors, a.size_bytes + b.size_bytes, a.held_bytes + b.held_bytes)
