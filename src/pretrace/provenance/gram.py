"""All inner products of all updates: the one pass over the parameters that every statistic of a verdict needs.

An update is what a run moved, theta_step - theta_0, as the published dtype shows it. With the products of all pairs at hand a
mean of updates, a centring and a projection are arithmetic on a small matrix, so models of any size are read once, block by
block. `plain.py` says the same on whole vectors; the tests compare the two.

Axes: N updates, n elements of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.dtypes import from_float32, to_float

Weights = NDArray[np.float64]  # [N]: a linear combination of the updates
START = "start"  # the row of theta_0 itself, which P.Cos needs


@dataclass(frozen=True, slots=True, eq=False)
class Gram:
    """Inner products of named updates, float64."""

    names: tuple[str, ...]
    products: NDArray[np.float64]  # [N, N], symmetric
    numel: int  # elements of one update

    def one(self, name: str) -> Weights:
        """The update called `name` as a combination of all."""
        return self.mean([name])

    def mean(self, names: Sequence[str]) -> Weights:
        """The mean of the updates called `names`."""
        weights = np.zeros(len(self.names))
        for name in names:
            weights[self.names.index(name)] += 1 / len(names)
        return weights

    def inner(self, a: Weights, b: Weights) -> float:
        """The inner product of two combinations."""
        return float(a @ self.products @ b)

    def cosine(self, a: Weights, b: Weights) -> float:
        """The cosine of two combinations; 0 where one of them is nothing."""
        return _ratio(self.inner(a, b), self.inner(a, a), self.inner(b, b))

    def distance(self, a: Weights, b: Weights) -> float:
        """The Euclidean distance of two combinations."""
        return float(np.sqrt(max(self.inner(a - b, a - b), 0.0)))


def gram_of(names: Sequence[str], blocks: Iterable[NDArray[Any]]) -> Gram:
    """The inner products of the updates `names`, whose elements come block by block.

    Parameters
    ----------
    names : one name a row, no name twice.
    blocks : arrays [N, n] of any float dtype; the row order is that of `names`. Sums are made in float64.
    """
    assert len(set(names)) == len(names), "a name stands for one update"
    products = np.zeros((len(names), len(names)))
    numel = 0
    for block in blocks:
        wide = np.asarray(block, dtype=np.float64)
        products += wide @ wide.T
        numel += wide.shape[1]
    return Gram(tuple(names), products, numel)


def published(values: NDArray[np.float32], dtype: str) -> NDArray[np.float64]:
    """`values` as a reader of the published files sees them: rounded to `dtype`, widened to float64.

    Both sides of a comparison need the same rounding: with fp16 storage the true order scores 0.47 at the first step against
    unrounded predictions, and 0.997 against rounded ones.
    """
    return to_float(from_float32(values, dtype), dtype).astype(np.float64)


def update_of(state: NDArray[np.float32], start: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """What a state has moved from the published start, seen through the published dtype."""
    return published(state, dtype) - start


def _ratio(ab: float, aa: float, bb: float) -> float:
    return ab / float(np.sqrt(aa * bb)) if aa > 0 and bb > 0 else 0.0
