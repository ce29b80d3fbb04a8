"""What a budget could see, said before the verdict: the smallest replaced part of the data that a duel would notice.

Replacing a part f of the sequences moves the order-specific update h to a mixture: f of it is lost and as much of another order
comes in, so |u_f - u|^2 = 2 f |h|^2 to first order, and f = 1 is a decoy. The benign scatter stays what it is, while the line
between the two sides of the duel shrinks like sqrt(f).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pretrace.provenance.gram import Gram
from pretrace.provenance.judge import Runs
from pretrace.provenance.rules import Rules
from pretrace.provenance.tails import t_quantile


@dataclass(frozen=True, slots=True)
class Power:
    """What the benign reruns of one hypothesis would show at one step."""

    step: int
    smallest_fraction: float  # of replaced sequences that a duel would see; above 1: nothing
    n_sequences: int  # read from the start up to the step: no smaller part than one of them can be replaced


def smallest_fraction(gram: Gram, runs: Runs, rules: Rules) -> float:
    """The smallest part of replaced sequences at which the benign reruns would win their duel; above 1: none.

    No reference is needed: the reruns and the decoys say it all.
    """
    misses, floors, lengths = _against_decoys(gram, runs)
    along, floor, length = _mean_square(misses) - _mean_square(floors), _mean_square(floors), float(np.mean(lengths))
    # The duel is won at 0.5 = k sd(f), with sd(f)^2 = (f along + floor) / (f length)^2: a quadratic in f.
    k = (1.1 * t_quantile(rules.duel_alpha, 2 * len(runs.own) - 2) / 0.5) ** 2
    along = max(along, 0.0)
    if length == 0:  # nothing has moved yet, or noise is all there is
        return math.inf
    return (k * along + math.sqrt((k * along) ** 2 + 4 * k * length**2 * floor)) / (2 * length**2)


def _against_decoys(gram: Gram, runs: Runs) -> tuple[list[float], list[float], list[float]]:
    """Of each rerun left out against each decoy: the part along the line between them, its floor, the line's squared length."""
    misses, floors, lengths = [], [], []
    for rerun in runs.own:
        rest = gram.mean([name for name in runs.own if name != rerun])
        off = gram.one(rerun) - rest
        for decoy in runs.decoys:
            line = rest - gram.one(decoy)
            misses.append(gram.inner(off, line))
            # The line without the noise of its own two ends, which together is that of `off`.
            lengths.append(max(gram.inner(line, line) - gram.inner(off, off), 0.0))
            # What is left of a miss however close the rival is: the mean of few reruns is itself off the truth.
            floors.append(gram.inner(off, off) / len(runs.own))
    return misses, floors, lengths


def _mean_square(values: Sequence[float]) -> float:
    return float(np.mean(np.square(values)))


def power_curve(
    grams: Mapping[int, Gram],
    runs: Runs,
    rules: Rules,
    global_batch: int,
    first: int = 0,
    fractions: Sequence[float] = (0.1, 0.01, 0.001),
) -> tuple[tuple[Power, ...], dict[float, int | None]]:
    """The power at each step, and for each fraction the first step from which on it stays visible (None: at none)."""
    curve = []
    for step, gram in sorted(grams.items()):
        n = (step - first) * global_batch
        curve.append(Power(step, max(smallest_fraction(gram, runs, rules), 1 / n), n))
    return tuple(curve), {f: _visible_from(curve, f) for f in fractions}


def _visible_from(curve: Sequence[Power], fraction: float) -> int | None:
    seen = None
    for power in reversed(curve):
        if power.smallest_fraction > fraction:
            break
        seen = power.step
    return seen
