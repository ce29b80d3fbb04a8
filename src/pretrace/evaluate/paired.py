"""Two models on the same documents: resampled together, so that what both find hard cancels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.documents import Floats
from pretrace.evaluate.intervals import (
    LEVEL,
    RESAMPLES,
    SEED,
    Interval,
    Ratio,
    deviation,
    drawn_ratios,
    draws,
    intervals,
    percentiles,
    spread,
)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A - B on the same documents. `p`: two-sided; of shares McNemar's exact one (the rows on which they differ), of others
    that of resamples: the share that crosses zero, doubled; ties count half.
    """

    a: Interval
    b: Interval
    difference: Interval
    p: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval of the difference leaves out zero, and p says so too."""
        return self.p < 1 - LEVEL and not (math.isnan(self.difference.low) or self.difference.holds(0.0))


def paired(a: Ratio, b: Ratio, resamples: int = RESAMPLES, seed: int = SEED) -> PairedDifference:
    """Both models resampled together: what the two find equally hard cancels.

    Raises
    ------
    PretraceError
        If they were not scored on as many documents.
    """
    return paired_all([(a, b)], resamples, seed)[0]


def paired_all(
    pairs: Sequence[tuple[Ratio, Ratio]], resamples: int = RESAMPLES, seed: int = SEED
) -> list[PairedDifference]:
    """`paired` of several metrics over the same documents, under the same draws.

    Raises
    ------
    PretraceError
        If they were not scored on as many documents.
    """
    flat = [ratio for pair in pairs for ratio in pair]
    sizes = {len(ratio.above) for ratio in flat}
    if len(sizes) > 1:
        found = " against ".join(map(str, sorted(sizes, reverse=True)))
        raise PretraceError(f"{found} documents: a paired test needs the same ones", "", "score both on the same rows")
    alone = intervals(flat, resamples, seed)
    drawn = drawn_ratios(flat, resamples, seed) if sizes and min(sizes) > 1 else [np.empty(0)] * len(flat)
    return [
        _difference(pair, (alone[2 * k], alone[2 * k + 1]), (drawn[2 * k], drawn[2 * k + 1]))
        for k, pair in enumerate(pairs)
    ]


def _difference(
    pair: tuple[Ratio, Ratio], alone: tuple[Interval, Interval], drawn: tuple[Floats, Floats]
) -> PairedDifference:
    a, b = alone
    value = a.value - b.value
    if not drawn[0].size:
        return PairedDifference(a, b, percentiles(value, drawn[0], a.n), math.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = pair[0].shape(drawn[0]) - pair[1].shape(drawn[1])
    wide = value + spread(a.n) * (apart - value)
    found = replace(percentiles(value, wide, a.n), stderr=deviation(apart[np.isfinite(apart)], a.n))
    if all(r.is_mean and np.isin(r.above, (0.0, 1.0)).all() for r in pair):
        return PairedDifference(a, b, found, mcnemar(pair[0].above, pair[1].above))
    below = float(((wide < 0) + 0.5 * (wide == 0)).mean())
    # A p of 0 cannot come from a finite number of draws: the one that was observed counts as one of them.
    return PairedDifference(a, b, found, min(1.0, 2 * (min(below, 1 - below) * wide.size + 1) / (wide.size + 1)))


def mcnemar(a: Floats, b: Floats) -> float:
    """Two-sided exact p of rights and wrongs [n] on the same rows: a fair coin for each row on which the two differ.

    >>> mcnemar(np.array([1.0] * 5 + [0.0] * 995), np.zeros(1000))
    0.0625
    """
    first, second = int((a > b).sum()), int((a < b).sum())
    ways, tail, n = 1, 0, first + second  # whole numbers: exact for any number of rows
    for k in range(min(first, second) + 1):
        tail, ways = tail + ways, ways * (n - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << n))


def paired_plain(a: Ratio, b: Ratio, resamples: int, seed: int) -> Interval:
    """`paired(...).difference`, one resample and one document at a time: the specification of the fast way."""
    n = len(a.above)
    counts = np.concatenate(list(draws(n, resamples, seed)))
    drawn = []
    for row in counts:
        picked = [i for i in range(n) for _ in range(int(row[i]))]
        values = [
            float(r.shape(np.asarray(sum(float(r.above[i]) for i in picked) / sum(float(r.below[i]) for i in picked))))
            for r in (a, b)
        ]
        drawn.append(values[0] - values[1])
    value = a.value() - b.value()
    return percentiles(value, value + spread(n) * (np.asarray(drawn) - value), n)
