"""Our figures beside published ones: a table of differences with intervals, said before any "matched".

Shares have Wilson's interval on both sides; perplexities are compared on the logarithm, since they are exponentials of a mean
loss: 5,000,000 beside 38 is a difference of 12 nats, whatever the standard error on the plain scale says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pretrace.evaluate.harness_results import Figure, metric_name, task_name
from pretrace.evaluate.intervals import Z, wilson

Judgement = Literal["not distinguishable", "different", "equal", "no interval"]


@dataclass(frozen=True, slots=True)
class Beside:
    """Ours beside theirs. `difference`: ours - theirs, of logarithms where `logarithm`; the true one is in [low, high] at 95%.

    The two are taken as independent (on the same rows the true interval is narrower; a paired test needs both's rows). Where only
    one says how sure it is, the other is taken as exact.
    """

    task: str
    metric: str
    ours: Figure
    theirs: Figure
    difference: float
    low: float
    high: float
    logarithm: bool
    judgement: Judgement

    @property
    def which(self) -> str:
        """Which of the published figures: its step and number of examples, as far as the file says."""
        said = [f"step {self.theirs.step:,}"] if self.theirs.step is not None else []
        said += [f"{self.theirs.num_fewshot}-shot"] if self.theirs.num_fewshot is not None else []
        return f" ({', '.join(said)})" if said else ""

    def sentence(self) -> str:
        """What may be said of the two."""
        rows = f" on {self.ours.n:,} rows" if self.ours.n else ""
        about = f"{self.task} {self.metric}{self.which}: ours {self.ours.value:.4g}, theirs {self.theirs.value:.4g}"
        if self.judgement == "no interval":
            return f"{about}; neither says how sure it is, so nothing can be said of the difference"
        if self.judgement == "equal":
            return f"{about}: the same figure"
        if self.logarithm:
            times = f"{_times(self.difference)} times [{_times(self.low)}, {_times(self.high)}]"
            return f"{about}, {times}: {self.judgement}{rows}"
        return f"{about}; difference {self.difference:+.3g} [{self.low:+.3g}, {self.high:+.3g}]: {self.judgement}{rows}"


def _times(logarithm: float) -> str:
    return f"{math.exp(min(logarithm, 700.0)):.3g}"


def beside(
    ours: Iterable[Figure], theirs: Iterable[Figure], *, step: int | None = None, num_fewshot: int | None = None
) -> tuple[Beside, ...]:
    """Every task and metric that both have, in order of steps; of theirs only `step` and `num_fewshot` where given."""
    wanted = [
        f
        for f in theirs
        if (step is None or f.step == step) and (num_fewshot is None or f.num_fewshot in (None, num_fewshot))
    ]
    index: dict[tuple[str, str], list[Figure]] = {}
    for figure in sorted(wanted, key=lambda f: (f.step or 0, f.num_fewshot or 0)):
        index.setdefault(_key(figure), []).append(figure)
    return tuple(_one(mine, other) for mine in ours for other in index.get(_key(mine), []))


def _key(figure: Figure) -> tuple[str, str]:
    return task_name(figure.task), metric_name(figure.metric)


def _one(ours: Figure, theirs: Figure) -> Beside:
    task, metric = _key(ours)
    logarithm = "perplexity" in metric and ours.value > 0 and theirs.value > 0
    a, b = (_ends(figure, metric, logarithm) for figure in (ours, theirs))
    difference = (math.log(ours.value) - math.log(theirs.value)) if logarithm else ours.value - theirs.value
    # The ends of a difference from the ends of its parts (Newcombe 1998, method 10; it holds for any pair of intervals).
    low = difference - math.hypot(a[0] - a[1], b[2] - b[0])
    high = difference + math.hypot(a[2] - a[0], b[0] - b[1])
    judgement: Judgement
    if ours.value == theirs.value:
        judgement = "equal"
    elif low == high:
        judgement = "no interval"
    else:
        judgement = "not distinguishable" if low <= 0 <= high else "different"
    return Beside(task, metric, ours, theirs, difference, low, high, logarithm, judgement)


def _ends(figure: Figure, metric: str, logarithm: bool) -> tuple[float, float, float]:
    """Value and the ends of its 95% interval on the scale of the comparison; the value itself three times where not known."""
    value, stderr = figure.value, figure.stderr
    if not math.isnan(figure.low):
        ends = (value, figure.low, figure.high)
        return (math.log(value), math.log(max(figure.low, 1e-300)), math.log(figure.high)) if logarithm else ends
    if logarithm:
        at, half = math.log(value), 0.0 if math.isnan(stderr) else Z * stderr / value
        return at, at - half, at + half
    if metric.startswith("acc") and 0 <= value <= 1:
        # The harness's stderr is sqrt(p (1 - p) / (n - 1)): it says n where the file does not.
        n = figure.n or (value * (1 - value) / stderr**2 + 1 if stderr > 0 and 0 < value < 1 else 0)
        if n:
            return (value, *wilson(value, n))
    half = 0.0 if math.isnan(stderr) else Z * stderr
    return value, value - half, value + half


def first_sentence(found: Sequence[Beside]) -> str:
    """How many of the common figures can be told apart, and on how few rows."""
    if not found:
        return "No figure is in both: other tasks, other metrics, or another step"
    kinds: tuple[Judgement, ...] = ("different", "not distinguishable", "equal", "no interval")
    counts = {kind: sum(b.judgement == kind for b in found) for kind in kinds}
    rows = min((b.ours.n for b in found if b.ours.n), default=None)
    said = f"{counts['different']} of {len(found)} figures differ by more than their intervals"
    said += f", {counts['not distinguishable']} are not distinguishable"
    said += f", {counts['equal']} equal" if counts["equal"] else ""
    said += f", {counts['no interval']} without an interval" if counts["no interval"] else ""
    return said + (f" (fewest rows of ours: {rows:,})" if rows else "")
