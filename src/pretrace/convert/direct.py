"""A converted tensor straight from the files: where its elements lie, and what is computed on the way.

The views of a conversion stand on each other (relabelled, padded, cast, canonical, merged). `direct` walks down and multiplies
their links out. What is left is boxes of stored tensors and at most a few elementwise steps, so that a stored tensor is held in
memory once and every block of the target is one strided copy. `plain` reading through the views gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.compose import compose
from pretrace.checkpoint.links import Link, clip, normal, whole
from pretrace.checkpoint.rewired import RewiredView
from pretrace.checkpoint.rounding import computed
from pretrace.checkpoint.slabs import make_room
from pretrace.checkpoint.tiles import copy_box, prepare
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.convert.cast import CastView
from pretrace.convert.residuals import Restored
from pretrace.dtypes import dtype

# Which view, and the name there: a parameter and its moments may be called the same in views of their own.
Key = tuple[int, str]
BLOCK_BYTES = 2 << 20  # of a target that one thread makes at a time
_ALIGNED = 64
_LARGE = 32 << 20
_STRIP = 1 << 15  # elements: 256 KiB of float64


@dataclass(frozen=True, slots=True)
class Step:
    """One elementwise step: value * scale + plus in float64, rounded once to `to_dtype`."""

    scale: float
    plus: float
    from_dtype: str
    to_dtype: str

    def apply(self, block: NDArray[Any]) -> NDArray[Any]:
        """The block after the step."""
        return computed(block, self.from_dtype, self.to_dtype, self.scale, self.plus)


@dataclass(frozen=True, slots=True)
class Direct:
    """One tensor of the target: links to stored tensors of `base`, and the steps after reading, the first one first."""

    info: TensorInfo
    base: StateView
    links: tuple[Link, ...]
    steps: tuple[Step, ...]
    sparse: bool  # elements that no link reaches are zero

    @property
    def stored(self) -> tuple[Key, ...]:
        """The stored tensors that it is made of, each once."""
        return tuple(dict.fromkeys((id(self.base), link.source) for link in self.links))

    def fill(self, held: Mapping[Key, NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        """Elements [start, stop) as a block of the target's dtype, from stored tensors that are `held` in memory."""
        kind = self.steps[0].from_dtype if self.steps else self.info.dtype
        block = (np.zeros if self.sparse else np.empty)(stop - start, np.dtype(dtype(kind).storage))
        for link in self.links:
            for part in clip(link, start, stop):
                moved = normal(Link(part.source, part.sizes, part.target_strides, part.source_strides,
                                    part.target_offset - start, part.source_offset))  # fmt: skip
                source = held[id(self.base), part.source]
                copy_box(source[moved.source_offset :], block[moved.target_offset :], moved.sizes, moved.target_strides,
                         moved.source_strides)  # fmt: skip
        return self._after_steps(block) if self.steps else block

    def _after_steps(self, block: NDArray[Any]) -> NDArray[Any]:
        """The steps, strip by strip: what they make in between stays in the cache."""
        made = np.empty(block.size, np.dtype(dtype(self.info.dtype).storage))
        for start in range(0, block.size, _STRIP):
            strip = block[start : start + _STRIP]
            for step in self.steps:
                strip = step.apply(strip)
            made[start : start + _STRIP] = strip
        return made


def hold(directs: Mapping[str, Direct], pool: ThreadPoolExecutor) -> dict[Key, NDArray[Any]]:
    """The stored tensors that these are made of, each once, read into memory by all threads."""
    base_of = {key: made.base for made in directs.values() for key in made.stored}
    infos = {key: base.info(key[1]) for key, base in base_of.items()}
    sizes = {key: -(-info.size_bytes // _ALIGNED) * _ALIGNED for key, info in infos.items()}
    if sum(sizes.values()) > _LARGE:
        make_room()
        for made in directs.values():
            if any(link.source_strides[-1:] not in ((), (1,)) for link in made.links):
                prepare(dtype(made.base.info(made.links[0].source).dtype).itemsize)
    # One piece of memory: the allocator gives large ones back at once, and keeps many small ones.
    room = np.empty(sum(sizes.values()), np.uint8)
    held: dict[Key, NDArray[Any]] = {}
    reads = []
    at = 0
    for key, info in infos.items():
        array = held[key] = room[at : at + info.size_bytes].view(dtype(info.dtype).storage)
        at += sizes[key]
        step = max(1, info.numel if base_of[key].at_once(key[1]) else BLOCK_BYTES // array.itemsize)
        reads += [(key, first, min(first + step, info.numel)) for first in range(0, info.numel, step)]

    def read(part: tuple[Key, int, int]) -> None:
        key, start, stop = part
        base_of[key].read(key[1], start, stop, held[key][start:stop])

    list(pool.map(read, reads))
    return held


def direct(view: StateView, name: str) -> Direct | None:
    """The tensor as links to what is stored; None where a sum, a residual or an odd box stands between."""
    info = view.info(name)
    links: tuple[Link, ...] = (whole(name, info.shape),)
    steps: list[Step] = []
    sparse = undone = False  # undone: the next steps below are undone by one that was left out
    while isinstance(view, (RewiredView, CastView, Restored, United)):
        sources = {link.source for link in links}
        if isinstance(view, United):
            inner = {source: view.below(source) for source in sources}
            if len({id(base) for base, _ in inner.values()}) > 1:
                return None
            links = tuple(replace(link, source=inner[link.source][1]) for link in links)
            view = next(base for base, _ in inner.values())
            continue
        if isinstance(view, Restored):
            if sources & view.residuals.keys():
                return None
        elif isinstance(view, CastView):
            made = {_cast_step(view, source) for source in sources}
            if len(made) > 1:
                return None
            steps[:0] = [step for step in made if step is not None]
        else:
            undoing = {view.undoes(source) for source in sources}
            lower = _down(view, links)
            if lower is None or len(undoing) > 1:
                return None
            links, added, gaps = lower
            sparse = sparse or gaps
            if undone and added:
                undone = False
            elif undoing == {True}:
                undone = True
            else:
                steps[:0] = added
        view = view.base
    if sparse and any(step.plus for step in steps):
        return None  # zeros would not stay zero
    return Direct(info, view, links, tuple(steps), sparse)


def _cast_step(view: CastView, source: str) -> Step | None:
    stored, made = view.base.info(source).dtype, view.info(source).dtype
    return None if stored == made else Step(1.0, 0.0, stored, made)


def _down(view: RewiredView, links: tuple[Link, ...]) -> tuple[tuple[Link, ...], list[Step], bool] | None:
    """The links one view lower, the steps of this one, and whether elements are left out."""
    made: list[Link] = []
    steps: set[Step | None] = set()
    sparse = False
    for link in links:
        wired = view.wired(link.source)
        if wired.combine != "place":
            return None
        if wired.sparse:
            if link.numel != wired.info.numel or link.source_strides not in ((), (1,)):
                return None
            sparse = True
            lower: tuple[Link, ...] | None = _of_whole(link, wired.links)
        else:
            lower = compose(link, tuple(normal(one) for one in wired.links))
        if lower is None:
            return None
        made += lower
        kind = wired.info.dtype
        steps.add(None if wired.moved else Step(wired.scale, wired.plus, kind, kind))
    if len(steps) > 1:
        return None
    return tuple(made), [step for step in steps if step is not None], sparse


def _of_whole(link: Link, inner: tuple[Link, ...]) -> tuple[Link, ...] | None:
    """What a link that takes a whole tensor as it is reads, when that tensor is made of `inner` and zeros."""
    if link.target_strides not in ((), (1,)):
        return None
    shift = link.target_offset
    return tuple(
        normal(Link(k.source, k.sizes, k.target_strides, k.source_strides, k.target_offset + shift, k.source_offset))
        for k in inner
    )
