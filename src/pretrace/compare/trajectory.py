"""One run's checkpoints against another's, step by step, or against several generations at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from pretrace.checkpoint.detect import open_state
from pretrace.compare.checkpoints import tensors
from pretrace.compare.result import Difference, flat
from pretrace.errors import PretraceError

Done = Callable[[int], None]  # called with the step that is done


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One step of A against the same step of every other run."""

    step: int
    against: Mapping[str, Difference]
    same: Mapping[str, bool]

    @property
    def nearest(self) -> str:
        """The run at the smallest L2; '' if two are equally near, or none has a finite distance."""
        ranked = self._ranked()
        tied = len(ranked) > 1 and self.against[ranked[0]].l2 == self.against[ranked[1]].l2
        return "" if tied or not ranked else ranked[0]

    @property
    def margin(self) -> float | None:
        """How many times as far the second nearest is; None with one run, or where the nearest is equal."""
        ranked = self._ranked()
        if len(ranked) < 2 or self.against[ranked[0]].l2 == 0:
            return None
        return self.against[ranked[1]].l2 / self.against[ranked[0]].l2

    def _ranked(self) -> list[str]:
        return sorted((k for k, d in self.against.items() if d.l2 == d.l2), key=lambda k: self.against[k].l2)


@dataclass(frozen=True, slots=True)
class SeriesComparison:
    """Two or more runs side by side."""

    a: str
    others: tuple[str, ...]
    base: str
    steps: tuple[StepComparison, ...]
    not_compared: Mapping[str, tuple[int, ...]]  # steps of A that the run has not
    seconds: float = field(default=0.0, compare=False)

    @property
    def same(self) -> bool:
        """Whether every compared step holds the same tensors, bit for bit."""
        return all(all(step.same.values()) for step in self.steps)

    @property
    def first_difference(self) -> Mapping[str, int | None]:
        """For every run, the first step at which it parts from A."""
        return {k: next((s.step for s in self.steps if k in s.same and not s.same[k]), None) for k in self.others}

    def summary(self) -> dict[str, object]:
        """The object that `--json` prints."""
        rows = [
            {"step": s.step, "nearest": s.nearest, "margin": s.margin,
             "against": {k: {**flat(d), "same": s.same[k]} for k, d in s.against.items()}}
            for s in self.steps
        ]  # fmt: skip
        return {
            "same": self.same, "a": self.a, "others": self.others, "base": self.base, "steps": rows,
            "first_difference": self.first_difference, "not_compared": self.not_compared, "seconds": self.seconds,
        }  # fmt: skip


def series(
    a: Mapping[int, str],
    others: Mapping[str, Mapping[int, str]],
    *,
    base: str = "",
    label: str = "A",
    threads: int | None = None,
    done: Done | None = None,
) -> SeriesComparison:
    """Compares one run with others at their common steps.

    Parameters
    ----------
    a : step -> path of the run in question.
    others : label -> (step -> path) of the runs that it is compared with.
    base : the checkpoint from which updates are counted; '' takes A's first step.
    label : what to call A.
    threads : readers side by side.
    done : called when a step has been compared.

    Raises
    ------
    PretraceError
        If no step is common, or a checkpoint cannot be read.
    """
    began = time.perf_counter()
    first = min(a)
    common = sorted(step for step in a if any(step in run for run in others.values()))
    if not common:
        raise PretraceError("the runs have no step in common", ", ".join(others), "check the names of the step folders")
    base = base or a[first]
    steps = []
    for step in common:
        steps.append(_step(step, a, others, base, threads))
        if done is not None:
            done(step)
    missing = {k: tuple(s for s in sorted(a) if s not in run) for k, run in others.items()}
    return SeriesComparison(label, tuple(others), base, tuple(steps), missing, time.perf_counter() - began)


def _step(
    step: int, a: Mapping[int, str], others: Mapping[str, Mapping[int, str]], base: str, threads: int | None
) -> StepComparison:
    found: dict[str, Difference] = {}
    same: dict[str, bool] = {}
    with ExitStack() as stack:
        left = stack.enter_context(open_state(a[step]))
        # At the base itself there is no update to compare.
        origin = stack.enter_context(open_state(base)) if base != a[step] else None
        for name, run in others.items():
            if step in run:
                right = stack.enter_context(open_state(run[step]))
                made = tensors(left, right, origin, threads=threads, moves=False)
                found[name], same[name] = made.total, made.same
    return StepComparison(step, found, same)
