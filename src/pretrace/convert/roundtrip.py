"""The target read back and mapped home, against what was to be written: every element, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.optimizer_names import parsed
from pretrace.checkpoint.spares import SPARES
from pretrace.checkpoint.table import Table
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.vocabulary import is_tall
from pretrace.convert.residuals import Residual, beyond_rounding
from pretrace.dtypes import dtype

_BLOCK_BYTES = 8 << 20
_PART = 1 << 18  # elements that are compared at a time: the answer stays in the cache
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
    wrong += [w for n in names if n in there and (w := _shape_fault(wanted, back, n)) is not None]
    odd = {w.name for w in wrong}
    # Layers that lie in one stored tensor follow each other: what had to be decoded for one serves the next.
    both = sorted((n for n in names if n in there and n not in odd), key=lambda n: back.source(n)[0])
    residuals: dict[str, Residual] = {}
    with ThreadPoolExecutor(threads) as pool:
        for found in _compared(wanted, back, both, scaled, pool, advance):
            if isinstance(found, Wrong):
                wrong.append(found)
            else:
                residuals |= found
    return RoundTrip(len(names), sum(wanted.info(n).numel for n in names), tuple(wrong), residuals)


def _compared(
    wanted: StateView, back: StateView, names: list[str], scaled: Callable[[str], float | None],
    pool: ThreadPoolExecutor, advance: Advance,
) -> Iterator[Wrong | dict[str, Residual]]:  # fmt: skip
    blocks = [(n, start) for n in names for start in range(0, wanted.info(n).numel, _step(wanted, n))]

    def compare(block: tuple[str, int]) -> _Part | Wrong | None:
        name, start = block
        stop = min(start + _step(wanted, name), wanted.info(name).numel)
        storage = np.dtype(dtype(wanted.info(name).dtype).storage)
        advance((stop - start) * storage.itemsize)
        with SPARES.scratch(stop - start, storage) as was, SPARES.scratch(stop - start, storage) as came:
            wanted.read(name, start, stop, was)
            back.read(name, start, stop, came)
            return _compare(name, start, was, came, wanted, scaled(name))

    parts: dict[str, list[_Part]] = {}
    for (name, _), found in zip(blocks, pool.map(compare, blocks), strict=True):
        if isinstance(found, Wrong):
            yield found
        elif found is not None:
            parts.setdefault(name, []).append(found)
    for name in names:
        if back.info(name).numel > (n := wanted.info(name).numel) and back.read(name, n, back.info(name).numel).any():
            yield Wrong(name, "rows that the target added are not zero")
    yield {n: Residual(np.concatenate([i for i, _ in p]), np.concatenate([v for _, v in p]), wanted.info(n).dtype)
           for n, p in parts.items()}  # fmt: skip


_Part = tuple[NDArray[np.int64], NDArray[Any]]  # indices, and the bits that were to be written


def _step(view: StateView, name: str) -> int:
    return max(1, _BLOCK_BYTES // dtype(view.info(name).dtype).itemsize)


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


def _shape_fault(wanted: StateView, back: StateView, name: str) -> Wrong | None:
    a, b = wanted.info(name), back.info(name)
    if a.dtype != b.dtype:
        return Wrong(name, f"came back as {b.dtype}, {a.dtype} was to be written")
    taller = is_tall(name) and a.shape[1:] == b.shape[1:] and a.shape[0] < b.shape[0]
    if a.shape != b.shape and not taller:
        return Wrong(name, f"came back with shape {list(b.shape)}, not {list(a.shape)}")
    return None


def _compare(
    name: str, start: int, was: NDArray[Any], came: NDArray[Any], wanted: StateView, plus: float | None
) -> _Part | Wrong | None:
    if all((_bits(was[k : k + _PART]) == _bits(came[k : k + _PART])).all() for k in range(0, was.size, _PART)):
        return None
    differing = np.flatnonzero(_bits(was) != _bits(came))
    if plus is None or beyond_rounding(was[differing], came[differing], wanted.info(name).dtype, plus):
        first = int(differing[0])
        what = f"{was[first]!r} was to be written, {came[first]!r} came back"
        return Wrong(name, f"{len(differing)} elements differ from {start + first} on: {what}")
    return differing + start, was[differing].copy()


def _bits(block: NDArray[Any]) -> NDArray[Any]:
    return block.view(f"u{block.itemsize}")
