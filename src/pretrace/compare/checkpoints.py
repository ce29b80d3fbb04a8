"""Two checkpoints, tensor by tensor: distances, equal bits, and where they part. One pass, bounded memory, any formats."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretrace.checkpoint.view import StateView
from pretrace.compare.measure import measure, numel_of
from pretrace.compare.names import Names, layer_of
from pretrace.compare.naming import exchanged, name_moves
from pretrace.compare.pairing import Pair, Pairing, pair_up
from pretrace.compare.passes import Advance, common_format, widen
from pretrace.compare.plain import BLOCK
from pretrace.compare.result import (
    Comparison,
    LayerDifference,
    Sums,
    TensorDifference,
    difference,
    together,
)
from pretrace.dtypes import dtype


def tensors(
    a: StateView,
    b: StateView,
    base: StateView | None = None,
    *,
    threads: int | None = None,
    moves: bool = True,
    labels: tuple[str, str, str] = ("A", "B", ""),
    advance: Advance | None = None,
) -> Comparison:
    """Compares two checkpoints; with `base` also the cosine of their updates from it.

    The result is the same bits for any number of threads, any split into shards and any format that stores the same tensors.

    Parameters
    ----------
    a, b, base : lazy views of any formats; only headers and blocks are read.
    threads : readers side by side; None takes the cores of the machine, four at most.
    moves : whether to look for the known move that makes a differing tensor equal.
    labels : what to call a, b and base in the result.
    advance : called with the bytes just compared.

    Raises
    ------
    PretraceError
        If the two have no tensor in common, or a file cannot be read.
    """
    began = time.perf_counter()
    pairing = pair_up(a, b, base)
    threads = threads or min(os.cpu_count() or 1, 4)
    fitting = [pair for pair in pairing.pairs if pair.fits and _numeric(pairing, pair)]
    sums = dict(zip((p.in_a for p in fitting), measure(pairing, fitting, threads, advance), strict=True))
    found = [_describe(pairing, pair, sums.get(pair.in_a)) for pair in pairing.pairs]
    if moves:
        found = name_moves(pairing, found)
    total = together(sums.values())
    only_a, only_b, notes = _tied(pairing)
    notes += exchanged(found)
    return Comparison(
        a=labels[0], b=labels[1], base=labels[2],
        total=difference(total), tensors=tuple(found), layers=_layers(pairing.pairs, sums),
        only_in_a=only_a, only_in_b=only_b, not_compared=_left_out(pairing, found, only_a, only_b),
        notes=(*pairing.notes, *notes), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _left_out(pairing: Pairing, found: Sequence[TensorDifference], only_a: Sequence[str], only_b: Sequence[str]) -> int:
    """Elements that no number of the comparison covers; of a pair whose shapes do not fit, those of the larger one."""
    apart = [max(math.prod(t.shape), math.prod(t.shape_b)) for t in found if t.difference is None]
    alone = [pairing.a.info(name).numel for name in only_a] + [pairing.b.info(name).numel for name in only_b]
    return sum(apart) + sum(alone)


def _numeric(pairing: Pairing, pair: Pair) -> bool:
    infos = (pairing.a.info(pair.in_a), pairing.b.info(pair.in_b))
    return all(dtype(info.dtype).bits % 8 == 0 and dtype(info.dtype).kind != "complex" for info in infos)


def _describe(pairing: Pairing, pair: Pair, sums: Sums | None) -> TensorDifference:
    left, right = pairing.a.info(pair.in_a), pairing.b.info(pair.in_b)
    found = TensorDifference(
        pair.name, pair.canonical, left.shape, right.shape, left.dtype, right.dtype,
        None if sums is None else difference(sums), note=pair.note,
    )  # fmt: skip
    return replace(found, note="; ".join(n for n in (pair.note, *_remarks(pairing, pair, found)) if n))


def _remarks(pairing: Pairing, pair: Pair, found: TensorDifference) -> list[str]:
    numbers = found.difference
    if numbers is None:
        return [] if not pair.fits else [f"{found.dtype} is not compared as numbers"]
    notes = []
    for which, count in (("A", numbers.nonfinite_a), ("B", numbers.nonfinite_b)):
        if count:
            notes.append(f"{count:,} values of {which} are not finite")
    if found.dtype != found.dtype_b:
        same = "the same numbers" if numbers.unequal == 0 else "compared after exact widening"
        notes.append(f"{found.dtype} against {found.dtype_b}, {same}")
    if numbers.unequal and numbers.ulp and numbers.ulp["0"] == numbers.numel:
        notes.append("equal numbers: only signs of zero differ")
    elif 0 < numbers.unequal <= max(8, numbers.numel // 1000):
        notes.append(_where_unequal(pairing, pair, found, numbers.unequal))
    return notes


def _where_unequal(pairing: Pairing, pair: Pair, found: TensorDifference, unequal: int) -> str:
    """The first element whose bits differ, as a person looks for it."""
    size = numel_of(pairing.a.info(pair.in_a), pair.rows)
    fmt = common_format(found.dtype, found.dtype_b)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        x = widen(pairing.a.read(pair.in_a, start, stop), found.dtype, fmt)
        y = widen(pairing.b.read(pair.in_b, start, stop), found.dtype_b, fmt)
        word = f"<u{x.dtype.itemsize}"
        unlike = np.flatnonzero(x.view(word) != y.view(word))
        if unlike.size:
            first = start + int(unlike[0])
            at = ", ".join(str(int(i)) for i in np.unravel_index(first, found.shape)) if found.shape else ""
            values = [float(widen(v[unlike[:1]], fmt, "float64" if fmt == "float64" else "float32")[0]) for v in (x, y)]
            return f"{unequal:,} unequal, first at [{at}] (flat {first}): {values[0]:.6g} in A, {values[1]:.6g} in B"
    return f"{unequal:,} unequal"


def _layers(pairs: Sequence[Pair], sums: dict[str, Sums]) -> tuple[LayerDifference, ...]:
    groups: dict[str, list[Sums]] = {}
    for pair in pairs:
        if pair.in_a in sums:
            groups.setdefault(layer_of(pair.canonical or pair.name), []).append(sums[pair.in_a])
    order = sorted(groups, key=lambda layer: (not layer, int(layer or 0)))
    return tuple(LayerDifference(layer, difference(together(groups[layer]))) for layer in order)


def _tied(pairing: Pairing) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Leaves out a head that only one side stores, if it is a copy of that side's embedding: the models are the same."""
    names: list[tuple[str, ...]] = []
    notes = []
    sides = ((pairing.a, pairing.names_a, pairing.only_in_a), (pairing.b, pairing.names_b, pairing.only_in_b))
    for view, known, alone in sides:
        heads = [name for name in alone if _is_copy_of_embedding(view, known, name)]
        notes += [f"{name} is a copy of the token embedding (tied), stored on one side only" for name in heads]
        names.append(tuple(name for name in alone if name not in heads))
    return names[0], names[1], notes


def _is_copy_of_embedding(view: StateView, known: Names, name: str) -> bool:
    twin = known.find("embed.weight")
    if known.of.get(name) != "head.weight" or not twin:
        return False
    if view.info(twin).shape != view.info(name).shape or view.info(twin).dtype != view.info(name).dtype:
        return False
    size = view.info(name).numel
    starts = range(0, size, BLOCK)
    return all(
        np.array_equal(_bits(view, name, i, min(i + BLOCK, size)), _bits(view, twin, i, min(i + BLOCK, size)))
        for i in starts
    )


def _bits(view: StateView, name: str, start: int, stop: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return view.read(name, start, stop).view(np.uint8)
