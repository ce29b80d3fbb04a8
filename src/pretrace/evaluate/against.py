"""Our figures beside published ones: a table of differences with intervals, said before any "matched"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pretrace.evaluate.harness_results import Figure, metric_name, task_name
from pretrace.evaluate.intervals import unpaired

Judgement = Literal["not distinguishable", "different", "equal", "no interval"]


@dataclass(frozen=True, slots=True)
class Beside:
    """Ours beside theirs. `half`: half the width of the 95% interval of the difference, NaN where neither says how sure it is.

    The two are taken as independent (on the same rows the true interval is narrower; a paired test needs both's rows).
    """

    task: str
    metric: str
    ours: Figure
    theirs: Figure
    difference: float
    half: float
    judgement: Judgement

    def sentence(self) -> str:
        """What may be said of the two."""
        rows = f" on {self.ours.n:,} rows" if self.ours.n else ""
        about = f"{self.task} {self.metric}: ours {self.ours.value:.4g}, theirs {self.theirs.value:.4g}"
        if self.judgement == "no interval":
            return f"{about}; neither says how sure it is, so nothing can be said of the difference"
        if self.judgement == "equal":
            return f"{about}: the same figure"
        return f"{about}; difference {self.difference:+.3g} +- {self.half:.2g}: {self.judgement}{rows}"


def beside(
    ours: Iterable[Figure], theirs: Iterable[Figure], *, step: int | None = None, num_fewshot: int | None = None
) -> tuple[Beside, ...]:
    """Every task and metric that both have; of theirs only `step` and `num_fewshot` where given."""
    wanted = [
        f
        for f in theirs
        if (step is None or f.step == step) and (num_fewshot is None or f.num_fewshot in (None, num_fewshot))
    ]
    index: dict[tuple[str, str], list[Figure]] = {}
    for figure in wanted:
        index.setdefault(_key(figure), []).append(figure)
    return tuple(_one(mine, other) for mine in ours for other in index.get(_key(mine), []))


def _key(figure: Figure) -> tuple[str, str]:
    return task_name(figure.task), metric_name(figure.metric)


def _one(ours: Figure, theirs: Figure) -> Beside:
    half, _ = unpaired(ours.value, ours.stderr, theirs.value, theirs.stderr)
    difference = ours.value - theirs.value
    judgement: Judgement
    if difference == 0:
        judgement = "equal"
    elif math.isnan(half):
        judgement = "no interval"
    else:
        judgement = "not distinguishable" if abs(difference) <= half else "different"
    task, metric = _key(ours)
    return Beside(task, metric, ours, theirs, difference, half, judgement)


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
