"""The target read back and mapped home, against what was to be written: every element, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.optimizer_names import parsed
from pretrace.checkpoint.table import Table
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.vocabulary import TALL
from pretrace.convert.residuals import Residual, beyond_rounding
from pretrace.dtypes import dtype

_BLOCK_BYTES = 8 << 20
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Wrong:
    """One tensor that did not come back."""

    name: str
    why: str


@dataclass(frozen=True)
class RoundTrip:
    """What came back. `residuals` are the elements that a scaled move rounded, to be kept beside the target."""

    tensors: int
    elements: int
    wrong: tuple[Wrong, ...]
    residuals: dict[str, Residual] = field(default_factory=dict)

    @property
    def n_residuals(self) -> int:
        """Elements that are kept beside."""
        return sum(len(r.index) for r in self.residuals.values())


def round_trip(wanted: StateView, back: StateView, table: Table | None, threads: int, advance: Advance) -> RoundTrip:
    """Compares all tensors of `wanted` with `back`, both under canonical names; `table` is that of the target's names."""
    scaled = scaled_parameters(table)
    names, there = wanted.names(), set(back.names())
    wrong = [Wrong(n, "is not in the target") for n in names if n not in there]
    wrong += [Wrong(n, "is in the target and was not to be written") for n in back.names() if n not in set(names)]
    both = [n for n in names if n in there]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda n: _compare(wanted, back, n, scaled(n), advance), both))
    residuals = {n: r for n, r in zip(both, found) if isinstance(r, Residual)}
    wrong += [r for r in found if isinstance(r, Wrong)]
    return RoundTrip(len(names), sum(wanted.info(n).numel for n in names), tuple(wrong), residuals)


def scaled_parameters(table: Table | None) -> Callable[[str], float | None]:
    """For the canonical names whose move scales or shifts values: what it adds; None for the others."""
    rules = [
        (re.compile(re.escape(part).replace(r"\{i\}", r"\d+")), move.plus)
        for move in (table.moves if table is not None else ())
        if move.scale or move.plus
        for part in move.parts
    ]

    def plus_of(name: str) -> float | None:
        state = parsed(name)
        parameter = name if state is None else state[1]
        return next((plus for pattern, plus in rules if pattern.fullmatch(parameter)), None)

    return plus_of


def _compare(
    wanted: StateView, back: StateView, name: str, plus: float | None, advance: Advance
) -> Residual | Wrong | None:
    a, b = wanted.info(name), back.info(name)
    if a.dtype != b.dtype:
        return Wrong(name, f"came back as {b.dtype}, {a.dtype} was to be written")
    taller = name in TALL and a.shape[1:] == b.shape[1:] and a.shape[0] < b.shape[0]
    if a.shape != b.shape and not taller:
        return Wrong(name, f"came back with shape {list(b.shape)}, not {list(a.shape)}")
    kept: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    step = max(1, _BLOCK_BYTES // dtype(a.dtype).itemsize)
    for start in range(0, a.numel, step):
        was = wanted.read(name, start, min(start + step, a.numel))
        came = back.read(name, start, min(start + step, a.numel))
        advance(was.nbytes)
        differing = np.flatnonzero(_bits(was) != _bits(came))
        if len(differing):
            if plus is None or beyond_rounding(was[differing], came[differing], a.dtype, plus):
                first = int(differing[0])
                return Wrong(name, f"{len(differing)} elements differ from {start + first} on: "
                                   f"{was[first]!r} was to be written, {came[first]!r} came back")  # fmt: skip
            kept.append((differing + start, was[differing].copy()))
    if taller and back.read(name, a.numel, b.numel).any():
        return Wrong(name, "rows that the target added are not zero")
    if not kept:
        return None
    return Residual(np.concatenate([i for i, _ in kept]), np.concatenate([v for _, v in kept]), a.dtype)


def _bits(block: NDArray[Any]) -> NDArray[Any]:
    return block.view(f"u{block.itemsize}")
