"""How sure a number is: standard errors, bootstrap over documents, and the paired bootstrap of two models.

Every number here is a ratio of two sums over documents (a mean has ones below), perhaps of an exponential, so a resample
is a vector of how often each document was drawn: B resamples of n documents are one product of a [B, n] matrix.
A document is the unit that is drawn: the tokens of one article are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.documents import Floats

SEED = 20240101
RESAMPLES = 2000
LEVEL = 0.95
_BLOCK = 1 << 22  # counts held at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its standard error and the interval that holds the true one at `LEVEL`; n documents."""

    value: float
    stderr: float
    low: float
    high: float
    n: int

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Ratio:
    """sum(above) / sum(below) over documents, then `shape` of it. Both float64 [n]."""

    above: Floats
    below: Floats
    shape: Callable[[Floats], Floats]

    def value(self) -> float:
        """The number itself."""
        return float(self.shape(np.asarray(self.above.sum() / self.below.sum())))

    @property
    def is_mean(self) -> bool:
        """Whether it is a plain mean over documents."""
        return self.shape is identity and bool((self.below == 1).all())


def identity(x: Floats) -> Floats:
    """The shape of a plain ratio."""
    return x


def mean(values: Sequence[float] | Floats) -> Ratio:
    """The mean over documents."""
    above = np.asarray(values, dtype=np.float64)
    return Ratio(above, np.ones_like(above), identity)


def mean_stderr(values: Sequence[float] | Floats) -> float:
    """Sample standard deviation over the root of n: what lm-evaluation-harness prints as `acc_stderr`; NaN for n < 2.

    >>> round(mean_stderr([1.0] * 29 + [0.0] * 71), 4)
    0.0456
    """
    x = np.asarray(values, dtype=np.float64)
    return float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.nan


def draws(n: int, resamples: int = RESAMPLES, seed: int = SEED) -> Iterator[Floats]:
    """How often each of n documents is drawn, [b, n] at a time, `resamples` rows in all. A function of its arguments."""
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(n, 1))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        picked = rng.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def interval(ratio: Ratio, resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The value with its bootstrap standard error and percentile interval; NaN where one document cannot tell."""
    return intervals([ratio], resamples, seed)[0]


def intervals(ratios: Sequence[Ratio], resamples: int = RESAMPLES, seed: int = SEED) -> list[Interval]:
    """`interval` of several ratios over the same documents, under the same draws."""
    if not ratios:
        return []
    n = len(ratios[0].above)
    if n == 0:
        return [Interval(math.nan, math.nan, math.nan, math.nan, 0) for _ in ratios]
    if n == 1:
        return [Interval(r.value(), math.nan, math.nan, math.nan, 1) for r in ratios]
    found = [_percentiles(r.value(), d, n) for r, d in zip(ratios, _drawn(ratios, resamples, seed), strict=True)]
    # Of a plain mean the standard error is known without drawing.
    return [replace(i, stderr=mean_stderr(r.above)) if r.is_mean else i for i, r in zip(found, ratios, strict=True)]


def _drawn(ratios: Sequence[Ratio], resamples: int, seed: int) -> list[Floats]:
    """The value of every ratio in every resample."""
    above, below = np.stack([r.above for r in ratios], 1), np.stack([r.below for r in ratios], 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = np.concatenate([(c @ above) / (c @ below) for c in draws(len(above), resamples, seed)])
        return [r.shape(sums[:, k]) for k, r in enumerate(ratios)]


def _percentiles(value: float, drawn: Floats, n: int) -> Interval:
    drawn = drawn[np.isfinite(drawn)]
    if drawn.size < 2:
        return Interval(value, math.nan, math.nan, math.nan, n)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(drawn.std(ddof=1)), float(low), float(high), n)


def proportion(values: Sequence[float] | Floats) -> Interval:
    """The mean of zeros and ones with the harness's standard error and Wilson's interval (sound at 0 and 1, where a
    bootstrap has no width).

    >>> got = proportion([1.0] * 29 + [0.0] * 71)
    >>> [round(x, 3) for x in (got.value, got.stderr, got.low, got.high)]
    [0.29, 0.046, 0.21, 0.385]
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        return Interval(math.nan, math.nan, math.nan, math.nan, 0)
    p = float(x.mean())
    return Interval(p, mean_stderr(x), *wilson(p, x.size), x.size)


def wilson(p: float, n: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share p of n rows; 0 and 1 are its ends where p is.

    >>> [round(x, 3) for x in wilson(0.0, 60)]
    [0.0, 0.06]
    """
    z = 1.959964
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if p == 0 else centre - half), (1.0 if p == 1 else centre + half)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A - B on the same documents. `p`: two-sided, the share of resamples that cross zero, doubled; ties count half."""

    a: Interval
    b: Interval
    difference: Interval
    p: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval of the difference leaves out zero."""
        return not (math.isnan(self.difference.low) or self.difference.holds(0.0))


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
    drawn = _drawn(flat, resamples, seed) if sizes and min(sizes) > 1 else [np.empty(0)] * len(flat)
    return [_difference(alone[k], alone[k + 1], drawn[k] - drawn[k + 1]) for k in range(0, len(flat), 2)]


def _difference(a: Interval, b: Interval, drawn: Floats) -> PairedDifference:
    if not drawn.size:
        return PairedDifference(a, b, _percentiles(a.value - b.value, drawn, a.n), math.nan)
    below = float(((drawn < 0) + 0.5 * (drawn == 0)).mean())
    # A p of 0 cannot come from a finite number of draws: the one that was observed counts as one of them.
    p = min(1.0, 2 * (min(below, 1 - below) * drawn.size + 1) / (drawn.size + 1))
    return PairedDifference(a, b, _percentiles(a.value - b.value, drawn, a.n), p)


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
    return _percentiles(a.value() - b.value(), np.asarray(drawn), n)
