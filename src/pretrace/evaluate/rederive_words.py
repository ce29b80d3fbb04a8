"""The answer to `--explain` in sentences: how sure first, then the convention, then the windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from pretrace.evaluate.documents import TaskDocuments
from pretrace.evaluate.numbers import Family, Number
from pretrace.evaluate.rederive import AtWindow, Explained

SHOWN = 4


def figure(value: float, family: Family) -> str:
    """A number as its family is printed: accuracies in points.

    >>> figure(0.2892, "accuracy"), figure(37.512, "perplexity")
    ('28.92%', '37.51')
    """
    return f"{100 * value:.2f}%" if family == "accuracy" else f"{value:.4g}"


def rows(n: int, n_total: int | None) -> str:
    """`100 of 10,042 rows`, or `all 600 rows`."""
    if n_total is None:
        return f"{n:,} rows"
    return f"all {n:,} rows" if n == n_total else f"{n:,} of {n_total:,} rows"


def how_sure(number: Number, n_total: int | None) -> str:
    """The sentence that comes before any comparison."""
    i = number.interval
    on = f"{number.task} {number.metric} = {figure(i.value, number.family)} on {rows(i.n, n_total)}"
    if math.isnan(i.stderr):
        return f"{on}: one row cannot say how sure it is"
    if number.family == "accuracy":
        return (
            f"{on}: standard error {100 * i.stderr:.1f} points, 95% interval {100 * i.low:.1f}% to {100 * i.high:.1f}%"
        )
    return f"{on}: standard error {i.stderr:.3g}, 95% interval {i.low:.4g} to {i.high:.4g} (documents drawn again)"


def printed(found: Explained) -> str:
    """The published figure as it was printed; accuracies in percent."""
    share = found.ours.family == "accuracy" and not found.published.printed.endswith("%") and found.published.value > 1
    return found.published.printed + ("%" if share else "")


def verdict(found: Explained) -> str:
    """The first sentence. Where a part of the rows cannot tell the figure from ours, that comes before any match."""
    said, i = printed(found), found.ours.interval
    unsure = found.indistinct and found.partial and found.outcome != "harness"
    if unsure:
        low, high = figure(i.low, found.ours.family), figure(i.high, found.ours.family)
        ours = figure(i.value, found.ours.family)
        first = f"On {rows(found.n, found.n_total)} {said} is not distinguishable from ours, {ours} ({low} to {high})"
        if found.outcome == "none":
            return f"{first}; no convention prints it"
        return f"{first}; {_how(found, 'it')}"
    return _how(found, said)


def _how(found: Explained, said: str) -> str:
    if found.outcome == "harness":
        return f"{said} is the harness's own {found.ours.metric} of these log-likelihoods"
    if found.outcome == "convention":
        return f"{said} is reproduced by another convention: {'; '.join(found.matches[0].departures)}"
    if found.outcome == "coarse":
        return (
            f"{said} is printed by another convention ({'; '.join(found.matches[0].departures)}), but so coarse a figure "
            f"is met by about {found.by_chance:.1f} of {found.tried} numbers by chance: more digits would tell"
        )
    if found.outcome == "possible":
        return f"{said} is within reach: {'; '.join(found.possible[0].departures)}; scoring them would tell"
    return f"No convention prints {said}: the model, the text or the prompt differs, not the arithmetic"


def lines(found: Explained) -> Iterator[str]:
    """The whole answer for a terminal."""
    yield verdict(found) + "."
    yield "  " + how_sure(found.ours, found.n_total) + "."
    if found.n_faulty:
        yield f"  {found.n_faulty:,} rows could not be scored and are in no number here."
    if found.n_missing:
        yield f"  {found.n_missing:,} rows are missing from the file, though later ones are there."
    yield from _matches(found)
    yield from _windows(found)
    if found.ask:
        yield f"  Next: {found.ask}."


def _matches(found: Explained) -> Iterator[str]:
    if not found.matches:
        nearest = "1 number was tried" if found.tried == 1 else f"{found.tried:,} numbers were tried"
        yield f"  {nearest}; none that is exact lies within {found.published.half:g} of the figure."
        return
    yield f"  {len(found.matches)} of {found.tried:,} numbers tried print it (about {found.by_chance:.1f} would by chance):"
    for number in found.matches[:SHOWN]:
        yield f"    {figure(number.value, number.family)}  {number.words}"
    if len(found.matches) > SHOWN:
        yield f"    and {len(found.matches) - SHOWN} with more departures"


def _windows(found: Explained) -> Iterator[str]:
    if not found.context:
        return
    yield f"  Context length alone, from the same log-likelihoods (ours: {found.ours.value:.4g}):"
    for at in _shown(found):
        yield f"    {at.value:9.4g}  [{at.low:.4g}, {at.high:.4g}]  {at.words}; {_part(at)}"
    yield "  " + context_sentence(found) + "."


def _shown(found: Explained) -> list[AtWindow]:
    """Disjoint windows, rolling ones of the scored length, and the joined stream; the page has the rest."""
    return [at for at in found.context if at.cut.stride is None or at.cut.max_length == found.max_length]


def _part(at: AtWindow) -> str:
    return f"{100 * at.exact:.0f}% of its tokens exact, the rest estimated"


def context_sentence(found: Explained) -> str:
    """By how much the length of the windows alone could explain the figure."""
    goal, ours = found.value, found.ours.value
    gap = math.log(goal / ours)
    disjoint = [at for at in found.context if at.cut.stride is None and not at.cut.joined]
    if gap == 0 or found.outcome == "harness":
        return "Context length has nothing to explain"
    reach = [at for at in found.context if (at.high >= goal if gap > 0 else at.low <= goal)]
    if not reach:
        far = max(found.context, key=lambda at: at.share)
        share = max(0.0, far.share)
        most = f"context length alone explains at most {100 * share:.0f}% of the gap ({far.words})"
        return f"No window looked at reaches {printed(found)}: {most}"
    crossing = _between(found, disjoint)
    if crossing:
        return f"Context length alone reaches {printed(found)} with disjoint windows of about {crossing:,} tokens"
    return f"Context length alone reaches {printed(found)}: {reach[0].words}"


def _between(found: Explained, disjoint: list[AtWindow]) -> int:
    """The length whose disjoint windows would print `goal`, between two that were looked at; 0 if it is beyond them."""
    goal = found.value
    points = [(at.cut.max_length, at.value) for at in disjoint]
    points = [(found.max_length, found.ours.value), *points] if found.max_length else points
    for (long, near), (short, far) in pairwise(points):
        if (near - goal) * (far - goal) <= 0 and near != far:
            part = (math.log(goal) - math.log(near)) / (math.log(far) - math.log(near))
            return round(math.exp(math.log(long) + part * (math.log(short) - math.log(long))))
    return 0


def task_line(task: TaskDocuments) -> str:
    """`hellaswag: 100 of 600 rows, windows of 512, 2 rows without a score`."""
    length = f", windows of {task.max_length:,}" if task.max_length else ""
    faulty = f", {len(task.faulty):,} rows without a score" if task.faulty else ""
    gone = ", ".join(map(str, task.missing[:5])) + (" ..." if len(task.missing) > 5 else "")
    missing = f", {len(task.missing):,} rows missing ({gone})" if task.missing else ""
    return f"{task.task}: {rows(len(task.used), task.n_total)}{length}{faulty}{missing}"
