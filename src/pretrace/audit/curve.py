"""Curves over the steps of a series: norms, and the distances between all pairs, from fingerprints; and the breaks in them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pretrace.compare.fingerprint import PROJECTIONS, Fingerprint
from pretrace.findings import Finding

ENOUGH = 5  # steps that a curve needs before a break can be told from its shape
NEARER = 0.5  # times the distance to the nearest neighbour in the series
DETOUR = 3.0  # times the distance between the two neighbours
# A break in a norm: far off the line between the neighbours by three measures, because early norms need not be monotone.
BREAK = 10.0  # times the usual departure from that line
SPIKE = 3.0  # times the difference of the neighbours
VISIBLE = 0.02  # relative to the norm


@dataclass(frozen=True)
class Curves:
    """Per step that has its own content: the norm of all parameters and of the embedding, and all pairwise distances."""

    steps: tuple[int, ...] = ()
    norm: tuple[float, ...] = ()
    by_kind: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # norms of `embed`, `blocks`, `head`
    distance: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))  # estimated l2 between steps

    def at(self, step: int) -> dict[str, float | None]:
        """Norm of a step, and its distance to the steps before it and at the start."""
        if step not in self.steps:
            return {"norm": None, "to_previous": None, "to_first": None}
        i = self.steps.index(step)
        return {
            "norm": self.norm[i],
            "to_previous": float(self.distance[i, i - 1]) if i else None,
            "to_first": float(self.distance[i, 0]),
        }


def curves(prints: Mapping[int, Fingerprint]) -> Curves:
    """The curves of a series; distances are estimates from 16 projections a tensor (a few percent over 100 tensors)."""
    steps = tuple(sorted(prints))
    if not steps:
        return Curves()
    common = sorted(set.intersection(*({t.name for t in prints[s].tensors if _used(t.dtype)} for s in steps)))
    tables = {s: {t.name: t for t in prints[s].tensors} for s in steps}
    kinds = {name: _group(tables[steps[0]][name].canonical or name) for name in common}
    squared = {s: {n: tables[s][n].norm ** 2 for n in common} for s in steps}
    norm = tuple(math.sqrt(math.fsum(squared[s].values())) for s in steps)
    by_kind = {
        kind: tuple(math.sqrt(math.fsum(v for n, v in squared[s].items() if kinds[n] == kind)) for s in steps)
        for kind in dict.fromkeys(kinds.values())
    }
    rows = np.array([[p for n in common for p in tables[s][n].projections] for s in steps], dtype=np.float64)
    apart = np.sqrt(((rows[:, None, :] - rows[None, :, :]) ** 2).sum(axis=2) / PROJECTIONS)
    return Curves(steps, norm, by_kind, apart)


def _used(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _group(name: str) -> str:
    return next((kind for kind in ("embed", "head", "blocks") if name.startswith(kind)), "rest")


def breaks(found: Curves, paths: Mapping[int, str]) -> list[Finding]:
    """Steps that are nearer to a distant step than to their neighbours, or off the curve of their neighbours."""
    findings = [*_nearest(found, paths), *_detours(found, paths)]
    named = {f.evidence["step"] for f in findings}
    return findings + [f for f in _norm_breaks(found, paths) if f.evidence["step"] not in named]


def _nearest(found: Curves, paths: Mapping[int, str]) -> Iterator[Finding]:
    n = len(found.steps)
    for i, step in enumerate(found.steps):
        far = [j for j in range(n) if abs(j - i) > 1]
        if not far or not np.isfinite(found.distance[i]).all():
            continue
        j = min(far, key=lambda k: found.distance[i, k])
        apart, near = (
            float(found.distance[i, j]),
            min(float(found.distance[i, k]) for k in (i - 1, i + 1) if 0 <= k < n),
        )
        # Of the two, the one that lies farther off the way between its neighbours is in the wrong place.
        if apart < NEARER * near and _detour(found, i) > _detour(found, j):
            scale = found.norm[i] or 1.0
            yield Finding(
                "trajectory-nearest",
                "error",
                f"{_called(paths, step)} is nearer to {_called(paths, found.steps[j])} (relative L2 {apart / scale:.2g}) than "
                f"to its neighbours ({near / scale:.2g})",
                paths.get(step, ""),
                {"step": step, "nearest": found.steps[j], "distance": apart, "neighbours": near},
                "fetch this step again from the run itself; it holds another step",
            )


def _detour(found: Curves, i: int) -> float:
    """How many times as far a step is from its neighbours as they are from each other; 0 at the ends."""
    if not 0 < i < len(found.steps) - 1:
        return 0.0
    there, back, direct = (float(found.distance[a, b]) for a, b in ((i - 1, i), (i, i + 1), (i - 1, i + 1)))
    return min(there, back) / direct if direct > 0 else 0.0


def _detours(found: Curves, paths: Mapping[int, str]) -> Iterator[Finding]:
    for i in range(1, len(found.steps) - 1):
        step = found.steps[i]
        if (times := _detour(found, i)) > DETOUR:
            yield Finding(
                "trajectory-detour",
                "error",
                f"{_called(paths, step)} is {times:.1f} times as far from both neighbours as they are from each other",
                paths.get(step, ""),
                {"step": step, "times": times},
                "fetch this step again: it is of another run, or damaged",
            )


def _norm_breaks(found: Curves, paths: Mapping[int, str]) -> Iterator[Finding]:
    if len(found.steps) < ENOUGH:
        return
    for kind, norms in found.by_kind.items():
        for k in _off_the_line(found.steps, np.array(norms)):
            step, here, beside = found.steps[k], norms[k], [norms[k - 1], norms[k + 1]]
            yield Finding(
                "trajectory-break",
                "error",
                f"the norm of {kind} is {here:.4f} at {_called(paths, step)}, between {beside[0]:.4f} and {beside[1]:.4f} at "
                "its neighbours",
                paths.get(step, ""),
                {"step": step, "norm": here, "neighbours": beside, "kind": kind},
                "fetch this step again from the run itself",
            )


def _off_the_line(steps: tuple[int, ...], values: NDArray[np.float64]) -> list[int]:
    """Places whose value is far off the line between its neighbours, over the logarithm of the step."""
    if not np.isfinite(values).all():
        return []
    at = np.log(np.maximum(1, np.array(steps, dtype=np.float64)))
    share = (at[1:-1] - at[:-2]) / np.maximum(at[2:] - at[:-2], 1e-12)
    line = values[:-2] + share * (values[2:] - values[:-2])
    off = np.abs(values[1:-1] - line)
    found = []
    for k in range(off.size):
        beside = slice(max(0, k - 1), k + 2)
        others = np.delete(off, np.arange(off.size)[beside])  # a break pulls its neighbours' lines along
        usual = float(np.median(others)) if others.size else float(off.min())
        if (
            off[k] > BREAK * usual
            and off[k] > max(VISIBLE * line[k], SPIKE * abs(values[k + 2] - values[k]))
            and off[k] == off[beside].max()
        ):
            found.append(k + 1)
    return found


def _called(paths: Mapping[int, str], step: int) -> str:
    path = paths.get(step, "")
    return os.path.basename(path.rstrip("/")) if path and "://" not in path else f"step{step}"
