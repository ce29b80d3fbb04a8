"""A view whose tensors are put together from those of another view, by links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.compose import compose
from pretrace.checkpoint.links import Link, gather, normal
from pretrace.checkpoint.rounding import computed, rounded
from pretrace.checkpoint.slabs import Slabs, scattered
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import Extent, StateView, TensorInfo, View
from pretrace.dtypes import dtype, to_float
from pretrace.errors import PretraceError
from pretrace.findings import Finding


@dataclass(frozen=True, slots=True)
class Wired:
    """One tensor: what it is called, the links that make it, and in words how."""

    info: TensorInfo
    links: tuple[Link, ...]
    words: str = ""
    combine: Literal["place", "sum", "mean"] = "place"  # sum, mean: every link is a whole addend
    scale: float = 1.0  # the value read is multiplied by this
    plus: float = 0.0  # and this is added, both in float64, and rounded once
    sparse: bool = False  # the links leave some elements out: those are zero

    @property
    def moved(self) -> bool:
        """Whether the numbers are those that are stored."""
        return self.combine == "place" and self.scale == 1.0 and self.plus == 0.0

    @property
    def covers(self) -> bool:
        """Whether the links reach every element and none outside (they do not overlap by construction)."""
        if any(link.target_offset + link.target_span > self.info.numel for link in self.links):
            return False
        if self.combine != "place":
            return all(link.numel == self.info.numel for link in self.links)
        return self.sparse or sum(link.numel for link in self.links) == self.info.numel

    @property
    def lies_whole(self) -> bool:
        """Whether every element stands in the view below."""
        return self.moved and not self.sparse


@dataclass(frozen=True, slots=True)
class _Path:
    """The links of a tensor to the tensors of `base`, whether their elements lie scattered there, and whether they are the
    numbers of the tensor: what it computes was either undone on the way, or is nothing.
    """

    base: StateView
    links: tuple[Link, ...]
    scattered: bool
    exact: bool


def _path(base: StateView, wired: Wired, undone: bool) -> _Path:
    links, exact = wired.links, wired.moved
    while wired.combine == "place":
        while isinstance(base, United) and (held := base.one_below({k.source for k in links})) is not None:
            links = tuple(replace(link, source=held[1][link.source]) for link in links)
            base = held[0]
        if not isinstance(base, RewiredView):
            break
        below = {link.source: base.wired(link.source) for link in links}
        whole = all(one.lies_whole for one in below.values())
        if not whole and (exact or not undone):
            break
        lower = [compose(link, tuple(map(normal, below[link.source].links))) for link in links]
        if any(made is None for made in lower):
            break
        base, links = base.base, tuple(link for made in lower for link in made or ())
        exact = exact or not whole
    return _Path(base, links, any(scattered(link.sizes, link.source_strides) for link in links), exact)


def _undoes(above: Wired, below: Wired) -> bool:
    """Whether `above` gives the numbers that `below` is computed from."""
    if below.combine != "place" or below.sparse:
        return False
    rest = above.scale * below.plus + above.plus
    return math.isclose(above.scale * below.scale, 1.0, rel_tol=1e-12) and math.isclose(rest, 0.0, abs_tol=1e-12)


class RewiredView(View):
    """Tensors made of another view's; reading stays lazy and in blocks, values are not changed unless it says so."""

    def __init__(
        self, base: StateView, tensors: Mapping[str, Wired], metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__({name: wired.info for name, wired in tensors.items()},
                         base.metadata() if metadata is None else metadata, base.findings())  # fmt: skip
        self.format = base.format
        self.base = base
        self._wired = dict(tensors)
        # What no link reaches would be whatever stood in the buffer before.
        uncovered = [w.info.name for w in tensors.values() if not w.covers]
        assert not uncovered, uncovered
        self._slabs = Slabs()
        self._paths: dict[str, _Path] = {}

    def wired(self, name: str) -> Wired:
        """What the tensor is made of, one level down."""
        self.info(name)
        return self._wired[name]

    def _path(self, name: str) -> _Path:
        """How a tensor is read: through views that only move numbers in one hop, where their links multiply out."""
        if name not in self._paths:
            self._paths[name] = _path(self.base, self._wired[name], self.undoes(name))
        return self._paths[name]

    def undoes(self, name: str) -> bool:
        """Whether what is computed for a tensor undoes what the views below compute, both of which would round."""
        wired, base = self.wired(name), self.base
        if wired.moved or wired.combine != "place" or wired.sparse:
            return False
        sources = {link.source for link in wired.links}
        while isinstance(base, (RewiredView, United)):
            if isinstance(base, United):
                held = base.one_below(sources)
                if held is None:
                    return False
                base, sources = held[0], set(held[1].values())
                continue
            below = [base.wired(source) for source in sources]
            if not all(one.lies_whole for one in below):
                return all(_undoes(wired, one) for one in below)
            base, sources = base.base, {link.source for one in below for link in one.links}
        return False

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        if self._path(info.name).scattered:

            def fill(first: int, last: int, out: NDArray[Any]) -> None:
                self._gather(info, first, last, out)

            self._slabs.read(info.name, info.numel, start, stop, block, fill)
        else:
            self._gather(info, start, stop, block)

    def _gather(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        wired = self._wired[info.name]
        if wired.sparse:
            block[...] = 0
        if wired.combine == "place":
            path = self._path(info.name)
            gather(path.base.read, path.links, start, stop, block, getattr(path.base, "read_rows", None))
            if not path.exact:
                _real(info.dtype)
                computed(block, info.dtype, info.dtype, wired.scale, wired.plus, block)
        else:
            block[...] = self._combined(wired, start, stop, block)

    def _combined(self, wired: Wired, start: int, stop: int, block: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros(stop - start, np.float64)
        addend = np.empty_like(block)
        for link in wired.links:
            gather(self.base.read, (link,), start, stop, addend)
            total += to_float(addend, _real(wired.info.dtype))
        if wired.combine == "mean":
            total /= len(wired.links)
        return rounded(total, wired.info.dtype)

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The names in the file, and the move in words."""
        self.info(name)
        wired = self._wired[name]
        made: list[str] = []
        words = [wired.words]
        for base_name in dict.fromkeys(link.source for link in wired.links):
            names, below = self.base.source(base_name)
            made += names
            words.insert(0, below)
        return tuple(dict.fromkeys(made)), ", ".join(dict.fromkeys(w for w in words if w))

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """The runs of the tensors below, where this one is a plain sequence of them."""
        info, wired = self.info(name), self._wired[name]
        if not wired.lies_whole:
            return None
        width = dtype(info.dtype).itemsize
        runs: list[Extent] = []
        for link in sorted(wired.links, key=lambda k: k.target_offset):
            below = self.base.extents(link.source)
            if link.target_strides not in ((), (1,)) or link.source_strides not in ((), (1,)) or below is None:
                return None
            runs += (_shifted(e, link, width) for e in below if _overlaps(e, link, width))
        return tuple(runs)

    def files(self) -> tuple[str, ...]:
        """The files of the view below."""
        return self.base.files()

    def verify(self) -> tuple[Finding, ...]:
        """The checksums of the view below."""
        return self.base.verify()

    def close(self) -> None:
        """Closes the view below."""
        self._slabs.clear()
        self.base.close()


def _real(name: str) -> str:
    """The dtype, if sums and products of its values can be rounded to it."""
    if dtype(name).kind != "float" or dtype(name).bits < 16:
        raise PretraceError(f"values of {name} are not summed or scaled", "", "read the tensor as it is stored")
    return name


def _overlaps(extent: Extent, link: Link, width: int) -> bool:
    first, last = link.source_offset, link.source_offset + link.numel
    return extent.first < last and first < extent.first + extent.size_bytes // width


def _shifted(extent: Extent, link: Link, width: int) -> Extent:
    start = max(extent.first, link.source_offset)
    stop = min(extent.first + extent.size_bytes // width, link.source_offset + link.numel)
    return Extent(extent.file, extent.offset + (start - extent.first) * width, (stop - start) * width,
                  start - link.source_offset + link.target_offset)  # fmt: skip
