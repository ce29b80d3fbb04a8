"""Two tests that need no training: did the model just see these sequences, and does its loss remember when.

Both permute. With `units` the sequences of one document stay together, which is conservative where documents span
sequences; without, every sequence is its own unit, which is exact for orders that shuffle samples.

Axes: n sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]  # [n]


@dataclass(frozen=True, slots=True)
class PermutationTest:
    """A statistic against its permutations. Small p: the sequences were seen as claimed."""

    statistic: float
    z: float  # against the permutations' mean and scatter
    p: float  # (1 + permutations at most as large) / (1 + permutations)
    permutations: int
    n_units: int


def delta_loss(
    change: Values, seen: NDArray[np.bool_], units: NDArray[np.int64] | None, permutations: int, seed: int
) -> PermutationTest:
    """Whether the loss fell more on sequences claimed for a window than on those claimed for later.

    Parameters
    ----------
    change : loss after the window minus loss before it, one value a sequence.
    seen : true for the sequences claimed for the window.
    units : the document of each sequence; None: every sequence alone.

    Returns
    -------
    The statistic is the probability that a seen sequence has a higher change than a later one: 0.5 where nothing was seen,
    towards 0 where it was (the Mann-Whitney statistic, ties by half).
    """
    ranks = midranks(change)
    n_seen = int(seen.sum())

    def statistic(order: NDArray[np.int64]) -> float:
        return float((ranks[order[:n_seen]].mean() - (n_seen + 1) / 2) / (len(ranks) - n_seen))

    return _permuted(statistic, np.argsort(~seen, kind="stable"), units, permutations, seed)


def palimpsest(
    loss: Values, step: NDArray[np.int64], units: NDArray[np.int64] | None, permutations: int, seed: int
) -> PermutationTest:
    """Rank correlation of loss and claimed step at one checkpoint: negative where what came last is remembered best.

    Parameters
    ----------
    loss : of each sequence, less that of a model trained on neither order where there is one.
    """
    ranks, when = midranks(loss), np.sort(midranks(step.astype(np.float64)))
    ranks, when = ranks - ranks.mean(), when - when.mean()
    length = float(np.sqrt((ranks @ ranks) * (when @ when)))

    def statistic(order: NDArray[np.int64]) -> float:
        return float(ranks[order] @ when) / length

    return _permuted(statistic, np.argsort(step, kind="stable"), units, permutations, seed)


def midranks(values: Values) -> Values:
    """Ranks from 1, ties share their mean.

    >>> midranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Values = (last - (counts - 1) / 2)[inverse.ravel()]
    return ranks


def _permuted(
    statistic: Callable[[NDArray[np.int64]], float], claimed: NDArray[np.int64], units: NDArray[np.int64] | None,
    permutations: int, seed: int,
) -> PermutationTest:  # fmt: skip
    """`statistic` takes an order of the sequences: as claimed, and with units in random order, each kept together."""
    labels = np.arange(len(claimed)) if units is None else np.unique(units, return_inverse=True)[1].ravel()
    rng = np.random.default_rng(seed)
    n_units = int(labels.max()) + 1
    found = statistic(claimed)
    null = np.array(
        [statistic(np.argsort(rng.permutation(n_units)[labels], kind="stable")) for _ in range(permutations)]
    )
    p = (1 + int((null <= found).sum())) / (1 + permutations)
    sd = float(null.std(ddof=1))
    return PermutationTest(found, (found - float(null.mean())) / sd if sd > 0 else 0.0, p, permutations, n_units)
