"""Views whose values are computed from another's: exact in fp32, or as addends whose sum is the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.optimizer_names import PREFIX, weights_of
from pretrace.checkpoint.rounding import rounded
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import Extent, StateView, TensorInfo, View
from pretrace.dtypes import dtype, to_float
from pretrace.errors import PretraceError

WIDE = "float32"


class Widened(View):
    """The same values in fp32. 16-bit floats fit exactly, fp32 passes through; nothing else is taken."""

    def __init__(self, base: StateView) -> None:
        infos = {name: replace(base.info(name), dtype=WIDE) for name in base.names()}
        for name in base.names():
            if base.info(name).dtype not in (WIDE, "float16", "bfloat16"):
                raise PretraceError(
                    f"{base.info(name).dtype} does not fit into fp32", name, "round it first: declare a dtype"
                )
        super().__init__(infos, base.metadata(), base.findings())
        self.format, self.base = base.format, base

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        kind = self.base.info(info.name).dtype
        if kind == WIDE:
            self.base.read(info.name, start, stop, block)
        else:
            block[...] = to_float(self.base.read(info.name, start, stop), kind)

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """As below."""
        names, words = self.base.source(name)
        return names, words if self.base.info(name).dtype == WIDE else f"{words}, widened to fp32".removeprefix(", ")

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """As below, where nothing is widened."""
        return self.base.extents(name) if self.base.info(name).dtype == WIDE else None

    def files(self) -> tuple[str, ...]:
        """The files of the view below."""
        return self.base.files()

    def close(self) -> None:
        """Closes the view below."""
        self.base.close()


def with_masters(view: StateView) -> StateView:
    """A view with moments whose masters are there: its own, or the weights in fp32 (formats that cannot do without, ZeRO)."""
    names = view.names()
    moments = [name for name in names if name.startswith(f"{PREFIX}exp_avg.")]
    if not moments or any(name.startswith(f"{PREFIX}fp32.") for name in names):
        return view
    return United({"": view, f"{PREFIX}fp32.": Widened(weights_of(view))}, view.metadata())


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one of `n_ranks` ranks in a tensor that is the sum of all parts."""

    tensor: str
    rank: int
    n_ranks: int


class Shares(View):
    """Addends: ranks from 1 on hold the value divided by their number and rounded, rank 0 holds the rest.

    The sum over ranks, in float64 and rounded once, is the value again, bit for bit where n_ranks is a power of two.
    """

    def __init__(self, base: StateView, shares: Mapping[str, Share]) -> None:
        super().__init__({name: replace(base.info(share.tensor), name=name) for name, share in shares.items()})
        self.format, self.base, self._shares = base.format, base, dict(shares)

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        share = self._shares[info.name]
        stored = self.base.read(share.tensor, start, stop)
        block[...] = share_of(stored, info.dtype, share.rank, share.n_ranks)

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The tensor that is shared out."""
        names, words = self.base.source(self._shares[name].tensor)
        share = self._shares[name]
        return names, f"{words}, addend {share.rank + 1} of {share.n_ranks}".removeprefix(", ")

    def files(self) -> tuple[str, ...]:
        """The files of the view below."""
        return self.base.files()


def share_of(stored: NDArray[Any], name: str, rank: int, n_ranks: int) -> NDArray[Any]:
    """The addend of one rank, in the stored form of the dtype `name`."""
    values = to_float(stored, name).astype(np.float64)
    finite = np.isfinite(values)
    part = rounded(np.where(finite, values, 0.0) / n_ranks, name)
    if rank:
        return part
    # What is not finite stays whole with rank 0.
    rest = np.where(finite, values - (n_ranks - 1) * to_float(part, name).astype(np.float64), values)
    assert dtype(name).kind == "float"
    return rounded(rest, name)
