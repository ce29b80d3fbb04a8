"""Everything that is said of scored rows, in one value: what a report and a model card are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError
from pretrace.evaluate.against import Beside, beside
from pretrace.evaluate.compare_models import MetricDifference, compare
from pretrace.evaluate.documents import RollingDocument, TaskDocuments, of_kind
from pretrace.evaluate.harness_results import Figure, Results, read_results, step_of
from pretrace.evaluate.held_out import HeldOut, held_out
from pretrace.evaluate.numbers import Number, numbers
from pretrace.evaluate.reading import read_documents
from pretrace.evaluate.rederive import Explained, explain_all


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One checkpoint's rows and their numbers, other windows apart. `step` is None where nothing says it."""

    name: str
    step: int | None
    tasks: tuple[TaskDocuments, ...]
    numbers: tuple[Number, ...]
    printed: tuple[Figure, ...] = ()  # of a file of results, whose rows are not known

    @property
    def own(self) -> tuple[Number, ...]:
        """The numbers as the harness makes them."""
        return tuple(n for n in self.numbers if not n.departures and n.basis == "exact")

    def task_of(self, number: Number) -> TaskDocuments:
        """The documents that a number is made of."""
        return next(t for t in self.tasks if t.task == number.task)

    def figures(self) -> tuple[Figure, ...]:
        """The harness's numbers as figures that can stand beside published ones."""
        return (*self.printed, *(self._figure(n) for n in self.own))

    def _figure(self, number: Number) -> Figure:
        i = number.interval
        return Figure(
            self.name, self.step, number.task, number.metric, i.value, i.stderr, i.n, low=i.low, high=i.high,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of rows: figures to `explain`; published results to stand beside (of one `model`, NAME or NAME@STEP, and one
    number of examples);
    every number of the last run under all `conventions` (seconds, on a large text).
    """

    explain: Sequence[str] = ()
    against: Results | None = None
    model: str = ""
    num_fewshot: int | None = None
    conventions: bool = False


NOTHING = Asked()


@dataclass(frozen=True, slots=True)
class Overview:
    """What was read and what is said of it. Empty parts were not asked for."""

    runs: tuple[ScoredRun, ...]
    explained: tuple[Explained, ...] = ()
    beside: tuple[Beside, ...] = ()
    compared: tuple[MetricDifference, ...] = ()
    held_out: tuple[HeldOut, ...] = ()
    conventions: tuple[Number, ...] = ()  # of the last run, under every convention and window
    command: str = ""

    @property
    def series(self) -> bool:
        """Whether the runs are steps of one training."""
        steps = [run.step for run in self.runs]
        return len(steps) > 1 and None not in steps and len(set(steps)) == len(steps)


def read_runs(paths: Iterable[str | Path]) -> tuple[ScoredRun, ...]:
    """The rows under each path, a run for each folder that holds some; a step is the rows' or the one in the folder's name.

    Raises
    ------
    PretraceError
        If there are no rows under a path, or some cannot be read.
    """
    found: list[ScoredRun] = []
    for path in paths:
        if Path(path).suffix == ".json":  # results without rows: they can only stand beside others
            figures = read_results(path).figures
            step = next((f.step for f in figures if f.step is not None), None)
            found.append(ScoredRun(Path(path).stem, step, (), (), figures))
            continue
        tasks = read_documents([path])
        folders = dict.fromkeys(Path(task.source).resolve().parent for task in tasks)
        for folder in folders:
            mine = [task for task in tasks if Path(task.source).resolve().parent == folder]
            # A folder with one run in it is known by the name it was given by.
            name = (Path(path).resolve() if len(folders) == 1 and Path(path).is_dir() else folder).name
            found.append(scored_run(name, mine, next((t.step for t in mine if t.step is not None), step_of(name))))
    return tuple(found)


def scored_run(name: str, tasks: Sequence[TaskDocuments], step: int | None = None) -> ScoredRun:
    """A run of documents that were read."""
    return ScoredRun(name, step, tuple(tasks), tuple(n for task in tasks for n in numbers(task, windows=False)))


def overview(runs: Sequence[ScoredRun], asked: Asked = NOTHING, *, command: str = "") -> Overview:
    """Answers what was asked of the runs, which are put in order of their steps where all have one.

    With two or more runs the first is compared with the last, unless no task is in both.

    Raises
    ------
    PretraceError
        If a figure to explain is no figure, or of a task that has no rows.
    """
    ordered = sorted(runs, key=lambda run: run.step or 0) if all(r.step is not None for r in runs) else list(runs)
    rows = _of_one_checkpoint(ordered)
    explained = tuple(found for figure in asked.explain for found in explain_all(rows, figure)[:1])
    return Overview(
        runs=tuple(ordered),
        explained=explained,
        beside=tuple(_beside(ordered, asked.against, asked)) if asked.against else (),
        compared=_compared(ordered),
        held_out=tuple(held_out(t) for t in ordered[-1].tasks if _has_tokens(t)) if ordered else (),
        conventions=tuple(n for t in ordered[-1].tasks for n in numbers(t)) if asked.conventions and ordered else (),
        command=command,
    )  # fmt: skip


def _of_one_checkpoint(runs: Sequence[ScoredRun]) -> tuple[TaskDocuments, ...]:
    """The last run's rows, and those of the same checkpoint scored under other settings."""
    last = runs[-1].tasks if runs else ()
    same = {task.checkpoint for task in last if task.checkpoint}
    others = tuple(task for run in runs[:-1] for task in run.tasks if task.checkpoint in same)
    return (*last, *others)


def _has_tokens(task: TaskDocuments) -> bool:
    return any(d.tokens is not None and len(d.tokens) for d in of_kind(task.documents, RollingDocument))


def _compared(runs: Sequence[ScoredRun]) -> tuple[MetricDifference, ...]:
    if len(runs) < 2 or not {t.task for t in runs[0].tasks} & {t.task for t in runs[-1].tasks}:
        return ()
    return compare(runs[0].tasks, runs[-1].tasks)


def _beside(runs: Sequence[ScoredRun], theirs: Results, asked: Asked) -> Iterator[Beside]:
    models, (model, _, at) = (
        theirs.models(),
        asked.model.rpartition("@") if "@" in asked.model else (asked.model, "", ""),
    )
    if at and not at.isdigit():
        raise PretraceError(f"{at!r} is no step", "--whose", "write NAME@STEP, such as pythia-160m@143000")
    if model and model not in models:
        few = ", ".join(models[:8]) + (" ..." if len(models) > 8 else "")
        raise PretraceError(f"no figures of {model}", theirs.source, f"name one of: {few}")
    if len(models) > 1 and not model:
        raise PretraceError(
            f"the figures are of {len(models)} models", theirs.source, f"name one (--whose), such as {models[0]}"
        )
    figures = [f for f in theirs.figures if not model or f.model == model]
    last = max((f.step for f in figures if f.step is not None), default=None)
    for run in runs:
        # Rows that do not say their step stand beside the last published one, and not beside every one of a training.
        step = int(at) if at else run.step if run.step is not None else last
        yield from beside(run.figures(), figures, step=step, num_fewshot=asked.num_fewshot)
