"""How sure a number is: standard errors and the bootstrap over documents.

Every number here is a ratio of two sums over documents (a mean has ones below), perhaps of an exponential, so a resample
is a vector of how often each document was drawn: B resamples of n documents are one product of a [B, n] matrix.
A document is the unit that is drawn: the tokens of one article are not independent.

Percentiles of a bootstrap are too narrow where documents are few (in simulations "95%" held the truth 50% of the times at
n = 2, 76% at 3, 92% at 14), so that what was drawn is spread out by what Student's t and n / (n - 1) ask for
(Hesterberg 2015, The American Statistician 69(4), "expanded percentile"; here the draws are scaled: none reach a level of 1e-7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretrace.evaluate.documents import Floats

SEED = 20240101
RESAMPLES = 2000
LEVEL = 0.95
Z = 1.959964  # of the normal distribution, at LEVEL
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
    drawn = drawn_ratios(ratios, resamples, seed)
    found = [_of_ratio(r, d) for r, d in zip(ratios, drawn, strict=True)]
    # Of a plain mean the standard error is known without drawing.
    return [replace(i, stderr=mean_stderr(r.above)) if r.is_mean else i for i, r in zip(found, ratios, strict=True)]


def drawn_ratios(ratios: Sequence[Ratio], resamples: int, seed: int) -> list[Floats]:
    """The ratio of every resample, before its shape."""
    above, below = np.stack([r.above for r in ratios], 1), np.stack([r.below for r in ratios], 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = np.concatenate([(c @ above) / (c @ below) for c in draws(len(above), resamples, seed)])
        return [sums[:, k] for k in range(len(ratios))]


def _of_ratio(ratio: Ratio, drawn: Floats) -> Interval:
    """Spread out as a plain ratio and shaped then: a perplexity's interval is made of its mean losses."""
    n, plain = len(ratio.above), replace(ratio, shape=identity).value()
    with np.errstate(over="ignore", invalid="ignore"):
        ends = ratio.shape(plain + spread(n) * (drawn - plain))
        found = percentiles(ratio.value(), ends, n)
        shaped = np.asarray(ratio.shape(drawn))
    shaped = shaped[np.isfinite(shaped)]
    return replace(found, stderr=deviation(shaped, n))


def percentiles(value: float, drawn: Floats, n: int) -> Interval:
    """The interval that values of resamples of n documents show."""
    drawn = drawn[np.isfinite(drawn)]
    if drawn.size < 2:
        return Interval(value, math.nan, math.nan, math.nan, n)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, deviation(drawn, n), float(low), float(high), n)


def deviation(drawn: Floats, n: int) -> float:
    """The standard error that resamples of n documents show: theirs is that of n in the place of n - 1."""
    return float(drawn.std(ddof=1)) * math.sqrt(n / (n - 1)) if drawn.size > 1 and n > 1 else math.nan


def spread(n: int) -> float:
    """How much wider than its percentiles the interval of n documents is.

    >>> [round(spread(n), 2) for n in (2, 3, 14, 60, 1000)]
    [9.17, 2.69, 1.14, 1.03, 1.0]
    """
    return _student(n - 1) / Z * math.sqrt(n / (n - 1)) if n > 1 else math.nan


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's t: closed forms for 1 and 2, else Cornish and Fisher's series (within 0.2%)."""
    if freedom < 3:
        return 12.7062 if freedom == 1 else 4.30265
    z, n = Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n**k for k, term in enumerate(terms, 1))


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
    z = Z
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if p == 0 else centre - half), (1.0 if p == 1 else centre + half)
