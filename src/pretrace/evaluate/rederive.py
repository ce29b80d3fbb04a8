"""Which convention prints a published figure; or that none does, and how much of the gap other windows could make.

Said first is how sure the figure is: on 100 rows of HellaSwag the standard error alone is 4.6 points, so a figure may
"match" and mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pretrace.errors import PretraceError
from pretrace.evaluate.context import Cut
from pretrace.evaluate.documents import RollingDocument, TaskDocuments, of_kind
from pretrace.evaluate.harness_results import task_name
from pretrace.evaluate.numbers import Family, Number, numbers
from pretrace.evaluate.published import Published, parse

# harness: its own way prints it; convention: another one does; coarse: another one does, but as many would by chance;
# possible: an estimate reaches it, scoring would tell.
Outcome = Literal["harness", "convention", "coarse", "possible", "none"]
BY_CHANCE = 0.25  # numbers that would print a figure by chance, from which on a match says nothing


@dataclass(frozen=True, slots=True)
class AtWindow:
    """The figure under other windows: where disjoint windows of `max_length` would put it, with the estimate's interval."""

    cut: Cut
    value: float
    low: float
    high: float
    exact: float
    share: float  # of the gap between ours and the published one that this window makes, on the logarithm; may exceed 1

    @property
    def words(self) -> str:
        """The cut in words."""
        return self.cut.words


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer to `--explain`. `matches` print the figure, fewest departures first; `possible` are estimates that reach it.

    `tried`: numbers looked at; `by_chance`: how many of them would print it if the figure lay anywhere among them, so that one
    match among many says little. `indistinct`: whether the figure lies inside ours' own interval over documents.
    """

    published: Published
    task: str
    ours: Number
    max_length: int | None  # of the windows that ours was scored in
    outcome: Outcome
    matches: tuple[Number, ...]
    possible: tuple[Number, ...]
    tried: int
    by_chance: float
    n: int
    n_total: int | None
    n_faulty: int
    n_missing: int
    indistinct: bool
    context: tuple[AtWindow, ...]
    ask: str

    @property
    def partial(self) -> bool:
        """Whether rows are missing, or it is not known that none are."""
        return self.n_total is None or self.n < self.n_total

    @property
    def value(self) -> float:
        """The published figure on the scale of ours."""
        return scaled(self.published, self.ours.family).value


def explain(tasks: Sequence[TaskDocuments], published: str | Published) -> Explained:
    """Looks for the published figure among all numbers of the tasks; the same task may come scored at several lengths.

    Raises
    ------
    PretraceError
        If no task has a number of that name.
    """
    figure = parse(published) if isinstance(published, str) else published
    found = [(task, numbers(task)) for task in _wanted(tasks, figure)]
    task, ours = _ours(found, figure)
    every = [_of(task, ours, other, number) for other, many in found for number in many if _same_kind(ours, number)]
    goal = scaled(figure, ours.family)
    matches = _fewest_first(n for n in every if n.basis == "exact" and goal.prints(n.value))
    possible = _fewest_first(
        n
        for n in every
        if n.basis == "estimated"
        and n.metric == ours.metric
        and n.interval.low - goal.half <= goal.value <= n.interval.high + goal.half
    )
    context = _context(ours, every, goal)
    return Explained(
        published=figure,
        task=task.task,
        ours=ours,
        max_length=task.max_length,
        outcome=_outcome(matches, possible, _by_chance(every, goal)),
        matches=matches,
        possible=possible,
        tried=len(every),
        by_chance=_by_chance(every, goal),
        n=ours.interval.n,
        n_total=task.n_total,
        n_faulty=len(task.faulty),
        n_missing=len(task.missing),
        indistinct=ours.interval.holds(goal.value) or goal.prints(ours.value),
        context=context,
        ask=_ask(task, ours, matches, possible, goal),
    )


_RANK: dict[Outcome, int] = {"harness": 0, "convention": 1, "coarse": 2, "possible": 3, "none": 4}


def explain_all(tasks: Sequence[TaskDocuments], published: str | Published) -> tuple[Explained, ...]:
    """`explain` for every task that the figure may be of, the best answer first."""
    figure = parse(published) if isinstance(published, str) else published
    names = dict.fromkeys(task.task for task in _wanted(tasks, figure))
    groups = [[t for t in tasks if t.task == name] for name in names]
    found = [explain(group, figure) for group in groups if any(numbers(t, windows=False) for t in group)]
    if not found:
        raise PretraceError("no row could be scored", figure.text, "look at the faults of the rows")
    return tuple(sorted(found, key=lambda one: _RANK[one.outcome]))


def scaled(figure: Published, family: Family) -> Published:
    """The figure on the scale of a family: accuracies are shares of 1."""
    return figure.as_share() if family == "accuracy" else figure


def _wanted(tasks: Sequence[TaskDocuments], figure: Published) -> list[TaskDocuments]:
    found = [t for t in tasks if not figure.task or task_name(t.task) == figure.task]
    if not found:
        names = ", ".join(sorted({task_name(t.task) for t in tasks})) or "none"
        raise PretraceError(f"no rows of {figure.task or 'any task'}", figure.text, f"name one of: {names}")
    return sorted(found, key=lambda t: -(t.max_length or 0))


def _ours(found: list[tuple[TaskDocuments, tuple[Number, ...]]], figure: Published) -> tuple[TaskDocuments, Number]:
    """The number of ours that stands for the figure: of its metric; else the nearest of the harness's own."""
    own = [(task, n) for task, many in found for n in many if not n.departures and n.basis == "exact"]
    named = [(task, n) for task, n in own if figure.metric in ("", n.metric)]
    if not named:
        names = ", ".join(sorted({n.metric for _, n in own})) or "none"
        raise PretraceError(f"no number called {figure.metric or 'anything'}", figure.text, f"name one of: {names}")
    kinds = [(t, n) for t, n in named if figure.metric or _plausible(figure, n)] or named
    first = kinds[0][0]  # the longest windows, and of equals the rows that were named first
    return min((pair for pair in kinds if pair[0] is first), key=lambda pair: _apart(figure, pair[1]))


def _plausible(figure: Published, number: Number) -> bool:
    share = number.family == "accuracy"
    return share if figure.percent else not share if figure.value > 100 else True


def _apart(figure: Published, number: Number) -> float:
    goal = scaled(figure, number.family).value
    if goal <= 0 or number.value <= 0:
        return abs(goal - number.value)
    return abs(math.log(goal / number.value))


def _same_kind(ours: Number, number: Number) -> bool:
    return number.family == ours.family


def _of(task: TaskDocuments, ours: Number, other: TaskDocuments, number: Number) -> Number:
    """The number with what sets it apart from ours: another metric, or another length it was scored at."""
    extra: tuple[str, ...] = ()
    if number.metric != ours.metric:
        extra = (f"it is {number.metric}, not {ours.metric}",)
    if other is not task:
        extra += _scored_otherwise(task, other)
    return replace(number, departures=(*extra, *number.departures))


def _scored_otherwise(task: TaskDocuments, other: TaskDocuments) -> tuple[str, ...]:
    found = []
    if other.max_length != task.max_length:
        found.append(f"scored in windows of {other.max_length or 'unknown length'}")
    ours = dict(task.settings)
    found += [f"scored with {name} {value}" for name, value in other.settings if ours.get(name, value) != value]
    if len(other.used) != len(task.used):
        found.append(f"on {len(other.used):,} rows")
    return tuple(found) or (f"the rows of {other.source}",)


def _fewest_first(found: Iterable[Number]) -> tuple[Number, ...]:
    return tuple(sorted(found, key=lambda n: len(n.departures)))


def _outcome(matches: tuple[Number, ...], possible: tuple[Number, ...], by_chance: float) -> Outcome:
    if matches and not matches[0].departures:
        return "harness"
    if matches:
        return "coarse" if by_chance >= BY_CHANCE else "convention"
    return "possible" if possible else "none"


def _by_chance(every: Sequence[Number], goal: Published) -> float:
    """Numbers that a figure of this precision would meet, were it spread over the numbers' own range on the logarithm."""
    values = sorted(math.log(n.value) for n in every if n.value > 0)
    if len(values) < 2 or goal.value <= goal.half or values[-1] == values[0]:
        return 0.0
    width = math.log((goal.value + goal.half) / (goal.value - goal.half))
    return len(values) * width / (values[-1] - values[0] + width)


def _context(ours: Number, every: Sequence[Number], goal: Published) -> tuple[AtWindow, ...]:
    """Ours under other windows, all else equal."""
    if ours.family == "accuracy" or goal.value <= 0 or ours.value <= 0:
        return ()
    gap = math.log(goal.value / ours.value)
    found = []
    for number in every:
        if number.cut is not None and number.metric == ours.metric and len(number.departures) == 1:
            i = number.interval
            share = math.log(i.value / ours.value) / gap if gap else math.nan
            found.append(AtWindow(number.cut, i.value, i.low, i.high, number.exact, share))
    return tuple(found)


def _ask(
    task: TaskDocuments, ours: Number, matches: tuple[Number, ...], possible: tuple[Number, ...], goal: Published
) -> str:
    """What to score next, in words; empty where the question is settled."""
    if matches:
        return ""
    n = ours.interval.n
    if task.n_total is not None and n < task.n_total and ours.interval.holds(goal.value) and not possible:
        return f"score all {task.n_total:,} rows"
    if possible:
        return f"score with {possible[0].departures[-1]}: the estimate reaches the figure, only scoring proves it"
    if ours.family == "accuracy":
        return "score other prompts: number of examples, the harness's version, a begin token before the context"
    if not any(d.tokens is not None for d in of_kind(task.documents, RollingDocument)):
        return "score with pretrace evaluate: only sums are known here, and other windows need every token's log-likelihood"
    text = "score with a begin token before every window, and without one"
    if goal.value < ours.value and task.max_length:
        text = f"score windows longer than {task.max_length:,} if the model reads them; " + text
    return text
