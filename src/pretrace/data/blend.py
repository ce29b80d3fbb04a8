"""Blends: which source each position takes from, and its sample there. The greedy rule of NeoX and Megatron-core."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kernels = Literal["auto", "plain", "fast"]  # auto: plain where loading the compiled code costs more than it saves
Blend = tuple[NDArray[np.int16], NDArray[np.int64]]  # source, and sample of that source, at each position
_WORTH_COMPILED = 50_000


def by_weight(weights: NDArray[np.float64], size: int, *, kernels: Kernels = "auto") -> Blend:
    """At position i the source with the largest weight * max(i, 1) - taken, the first one on ties; weights sum to 1."""
    choice, within = np.zeros(size, np.int16), np.zeros(size, np.int64)
    unbounded = np.full(len(weights), size, np.int64)
    _filler(kernels, size)(np.asarray(weights, np.float64), unbounded, choice, within)
    return choice, within


def exhaustive(sizes: NDArray[np.int64], *, kernels: Kernels = "auto") -> Blend:
    """The same with weights = sizes / their sum, among the sources that are not used up: every sample of each, once."""
    total = int(sizes.sum())
    choice, within = np.zeros(total, np.int16), np.zeros(total, np.int64)
    _filler(kernels, total)(sizes / float(total), sizes, choice, within)
    return choice, within


def _filler(kernels: Kernels, size: int) -> Any:
    if kernels == "fast" or (kernels == "auto" and size > _WORTH_COMPILED):
        from pretrace.data.kernels import blend

        return blend
    return _plain


def _plain(weights: Any, sizes: Any, choice: Any, within: Any) -> None:
    taken = np.zeros(len(weights), np.int64)
    for i in range(len(choice)):
        missing = np.where(taken < sizes, weights * max(i, 1) - taken, -np.inf)
        choice[i] = np.argmax(missing)
        within[i] = taken[choice[i]]
        taken[choice[i]] += 1
