"""Everything that is said of scored rows, in one value: what a report and a model card are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError
from pretrace.evaluate.against import Beside, beside
from pretrace.evaluate.compare_models import MetricDifference, compare
from pretrace.evaluate.documents import RollingDocument, TaskDocuments, of_kind
from pretrace.evaluate.harness_results import Figure, Results, step_of
from pretrace.evaluate.held_out import HeldOut, held_out
from pretrace.evaluate.numbers import Number, numbers
from pretrace.evaluate.reading import read_documents
from pretrace.evaluate.rederive import Explained, explain_all


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One checkpoint's rows and all their numbers. `step` is None where the name says none."""

    name: str
    step: int | None
    tasks: tuple[TaskDocuments, ...]
    numbers: tuple[Number, ...]

    @property
    def own(self) -> tuple[Number, ...]:
        """The numbers as the harness makes them."""
        return tuple(n for n in self.numbers if not n.departures and n.basis == "exact")

    def task_of(self, number: Number) -> TaskDocuments:
        """The documents that a number is made of."""
        return next(t for t in self.tasks if t.task == number.task)

    def figures(self) -> tuple[Figure, ...]:
        """The harness's numbers as figures that can stand beside published ones."""
        return tuple(
            Figure(self.name, self.step, n.task, n.metric, n.value, n.interval.stderr, n.interval.n) for n in self.own
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """What was read and what is said of it. Empty parts were not asked for."""

    runs: tuple[ScoredRun, ...]
    explained: tuple[Explained, ...] = ()
    beside: tuple[Beside, ...] = ()
    compared: tuple[MetricDifference, ...] = ()
    held_out: tuple[HeldOut, ...] = ()
    command: str = ""

    @property
    def series(self) -> bool:
        """Whether the runs are steps of one training."""
        steps = [run.step for run in self.runs]
        return len(steps) > 1 and None not in steps and len(set(steps)) == len(steps)


def read_run(path: str | Path) -> ScoredRun:
    """The rows under a folder (or in a file) as one run; a step in its name is its step."""
    return scored_run(Path(path).name, read_documents([path]), step_of(str(Path(path).name)))


def scored_run(name: str, tasks: Sequence[TaskDocuments], step: int | None = None) -> ScoredRun:
    """A run of documents that were read."""
    return ScoredRun(name, step, tuple(tasks), tuple(n for task in tasks for n in numbers(task)))


def overview(
    runs: Sequence[ScoredRun],
    *,
    explain: Sequence[str] = (),
    against: Results | None = None,
    num_fewshot: int | None = None,
    model: str = "",
    command: str = "",
) -> Overview:
    """Answers what was asked of the runs, which are put in order of their steps where all have one.

    With two or more runs the first is compared with the last, unless no task is in both.

    Raises
    ------
    PretraceError
        If a figure to explain is no figure, or of a task that has no rows.
    """
    ordered = sorted(runs, key=lambda run: run.step or 0) if all(r.step is not None for r in runs) else list(runs)
    explained = tuple(found for figure in explain for found in explain_all(_all_tasks(ordered), figure)[:1])
    return Overview(
        runs=tuple(ordered),
        explained=explained,
        beside=tuple(_beside(ordered, against, num_fewshot, model)) if against else (),
        compared=_compared(ordered),
        held_out=tuple(held_out(t) for t in ordered[-1].tasks if _has_tokens(t)) if ordered else (),
        command=command,
    )  # fmt: skip


def _all_tasks(runs: Sequence[ScoredRun]) -> tuple[TaskDocuments, ...]:
    return tuple(task for run in runs for task in run.tasks)


def _has_tokens(task: TaskDocuments) -> bool:
    return any(d.tokens is not None and len(d.tokens) for d in of_kind(task.documents, RollingDocument))


def _compared(runs: Sequence[ScoredRun]) -> tuple[MetricDifference, ...]:
    if len(runs) < 2 or not {t.task for t in runs[0].tasks} & {t.task for t in runs[-1].tasks}:
        return ()
    return compare(runs[0].tasks, runs[-1].tasks)


def _beside(runs: Sequence[ScoredRun], theirs: Results, num_fewshot: int | None, model: str) -> Iterator[Beside]:
    models = theirs.models()
    if model and model not in models:
        raise PretraceError(
            f"no figures of {model}",
            theirs.source,
            f"name one of: {', '.join(models[:8])}{' ...' if len(models) > 8 else ''}",
        )
    if len(models) > 1 and not model:
        raise PretraceError(f"the figures are of {len(models)} models", theirs.source, f"name one, such as {models[0]}")
    figures = [f for f in theirs.figures if not model or f.model == model]
    for run in runs:
        yield from beside(run.figures(), figures, step=run.step, num_fewshot=num_fewshot)
