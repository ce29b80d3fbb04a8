"""Tail probabilities that the verdict prints: an exact rank, Student's t, and an interval for an error rate.

Only the rank decides. The t tail is an extrapolation beyond what the decoys can show, and is labelled so wherever it is
printed. scipy would give the same numbers (the tests compare); the core of pretrace does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike


def rank_p(score: float, null_scores: ArrayLike) -> float:
    """The exact p of `score` among exchangeable `null_scores`: (1 + how many are at least as large) / (1 + how many).

    >>> rank_p(0.9, [0.1, -0.2, 0.0])
    0.25
    """
    null = np.asarray(null_scores, dtype=np.float64)
    return float((1 + int((null >= score).sum())) / (1 + null.size))


def t_upper_tail(t: float, dof: float) -> float:
    """P(T > t) of Student's t with `dof` degrees of freedom."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    if t * t < 1:  # the other end of the same integral, which keeps its digits where t is small
        both = 1 - incomplete_beta(0.5, dof / 2, t * t / (dof + t * t))
    else:
        both = incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))
    return both / 2 if t >= 0 else 1 - both / 2


def t_quantile(p_upper: float, dof: float) -> float:
    """The t with P(T > t) = `p_upper`, for 0 < p_upper < 0.5."""
    high = 1.0
    while t_upper_tail(high, dof) > p_upper:
        high *= 2
    return _bisect(lambda t: t_upper_tail(t, dof) > p_upper, 0.0, high)


def clopper_pearson(events: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate after `events` in `n` trials.

    >>> [round(x, 4) for x in clopper_pearson(0, 300)]
    [0.0, 0.0122]
    """
    tail = (1 - confidence) / 2
    low = 0.0 if events == 0 else _bisect(lambda p: incomplete_beta(events, n - events + 1, p) < tail, 0.0, 1.0)
    high = 1.0 if events == n else _bisect(lambda p: incomplete_beta(events + 1, n - events, p) < 1 - tail, 0.0, 1.0)
    return low, high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))) from the top."""
    tiny = 1e-300
    c, d, value = math.inf, 1.0, 1.0
    for n in range(1, 1000):
        m = n // 2
        if n % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + step * d or tiny)
        c = 1 + step / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """The point where `below` turns from true to false."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
