"""A view in another dtype, and what the rounding changed.

Values are rounded to nearest-even, once, from what is stored. The report counts what a reader would want to know before
they trust a narrower copy: how many values changed, by how much at most, which overflowed and which became zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.names import is_state
from pretrace.checkpoint.rounding import computed
from pretrace.checkpoint.view import Extent, StateView, TensorInfo, View
from pretrace.dtypes import dtype, to_float
from pretrace.findings import Finding

FLOATS = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Rounding:
    """What became of one tensor's values."""

    name: str
    from_dtype: str
    to_dtype: str
    numel: int
    changed: int  # values that are not the stored ones any more
    largest: float  # largest |rounded - stored| / |stored| of finite, non-zero values
    overflowed: int  # finite values that became infinite
    vanished: int  # values that became zero


class CastView(View):
    """Weights of a canonical view in another float dtype; optimizer state and integers stay as they are."""

    def __init__(self, base: StateView, name: str) -> None:
        assert name in FLOATS, name
        super().__init__({n: _cast(base.info(n), name) for n in base.names()}, base.metadata(), base.findings())
        self.format, self.base, self.name = base.format, base, name

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        stored = self.base.info(info.name)
        if stored.dtype == info.dtype:
            self.base.read(info.name, start, stop, block)
        else:
            computed(self.base.read(info.name, start, stop), stored.dtype, info.dtype, 1.0, 0.0, block)

    def source(self, name: str) -> tuple[tuple[str, ...], str]:
        """The names in the file, and the move in words, the rounding last."""
        names, words = self.base.source(name)
        stored, made = self.base.info(name).dtype, self.info(name).dtype
        return names, ", ".join(filter(None, (words, "" if stored == made else f"{stored} -> {made}")))

    def extents(self, name: str) -> tuple[Extent, ...] | None:
        """The stored bytes, where nothing is rounded."""
        same = self.base.info(name).dtype == self.info(name).dtype
        return self.base.extents(name) if same else None

    def files(self) -> tuple[str, ...]:
        """The files of the view below."""
        return self.base.files()

    def close(self) -> None:
        """Closes the view below."""
        self.base.close()


def rounding_of(view: CastView, name: str, block_elements: int = 1 << 20) -> Rounding | None:
    """Reads one tensor once and says what its rounding changes; None if it is not rounded."""
    stored, made = view.base.info(name), view.info(name)
    if stored.dtype == made.dtype:
        return None
    total = Rounding(name, stored.dtype, made.dtype, made.numel, 0, 0.0, 0, 0)
    for start in range(0, made.numel, block_elements):
        block = view.base.read(name, start, min(start + block_elements, made.numel))
        total = _added(total, block, stored.dtype, made.dtype)
    return total


def _added(total: Rounding, block: NDArray[Any], stored: str, made: str) -> Rounding:
    before = to_float(block, stored).astype(np.float64)
    after = to_float(computed(block, stored, made, 1.0, 0.0), made).astype(np.float64)
    finite = np.isfinite(before)
    both = finite & np.isfinite(after) & (before != 0)
    relative = np.abs(after[both] - before[both]) / np.abs(before[both])
    return replace(
        total,
        changed=total.changed + int((after[finite] != before[finite]).sum()),
        largest=max(total.largest, float(relative.max(initial=0.0))),
        overflowed=total.overflowed + int((finite & ~np.isfinite(after)).sum()),
        vanished=total.vanished + int(((before != 0) & (after == 0)).sum()),
    )


def rounding_findings(report: Mapping[str, Rounding]) -> list[Finding]:
    """Overflow is an error, values that vanish a warning: the tensors are named, the worst first."""
    found = []
    for attribute, code, severity, words in (
        ("overflowed", "rounding-overflow", "error", "finite values became infinite"),
        ("vanished", "rounding-underflow", "warning", "values became zero"),
    ):
        hit = sorted((r for r in report.values() if getattr(r, attribute)), key=lambda r: -getattr(r, attribute))
        if hit:
            n = sum(getattr(r, attribute) for r in hit)
            found.append(
                Finding(code, "error" if severity == "error" else "warning",
                        f"{n:,} {words} in {len(hit)} tensors ({hit[0].from_dtype} -> {hit[0].to_dtype})", hit[0].name,
                        {r.name: getattr(r, attribute) for r in hit[:100]}, "keep the stored dtype, or choose bfloat16")
            )  # fmt: skip
    return found


def _cast(info: TensorInfo, name: str) -> TensorInfo:
    fmt = dtype(info.dtype)
    if is_state(info.name) or fmt.kind != "float" or info.dtype not in FLOATS:
        return info
    return replace(info, dtype=name)
