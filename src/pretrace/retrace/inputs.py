"""What a case needs before it can run: which of its files are not here, where each belongs, and where it comes from.

Checked before anything is read or trained, so that one message names everything that is to be fetched.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError
from pretrace.recipe import Recipe
from pretrace.retrace.case import Case, hypothesis_recipe, recipes_of
from pretrace.retrace.parts import Reference
from pretrace.retrace.series import steps_in


@dataclass(frozen=True, slots=True)
class Missing:
    """One input that is not here."""

    what: str  # checkpoints or tokens, and of what
    path: str  # where it belongs
    steps: tuple[int, ...]  # of checkpoints: those that are not there ...
    there: tuple[int, ...]  # ... and those that are
    fetch: str  # where it comes from, as the case file says; empty where it does not


def missing(case: Case) -> tuple[Missing, ...]:
    """Every input of the case that is not here, the reference first."""
    found = {each.path: each for each in (*_series(case), *_tokens(case))}
    return tuple(found.values())


def refuse_missing(case: Case) -> None:
    """Stops a case whose inputs are not here.

    Raises
    ------
    PretraceError
        With one line for each: what it is, where it belongs, where it comes from.
    """
    if absent := missing(case):
        n = len(absent)
        raise PretraceError(
            f"{n} {'input of the case is' if n == 1 else 'inputs of the case are'} not here", case.place,
            "put in place, then run the same command again:\n" + "\n".join(f"          {line}" for line in lines(absent)),
        )  # fmt: skip


def lines(absent: Sequence[Missing]) -> list[str]:
    """One line for each input: what, where to put it, from where."""
    return [f"{each.path}: {each.what}{_at(each)}{f'; {each.fetch}' if each.fetch else ''}" for each in absent]


def _at(absent: Missing) -> str:
    steps, there = (", ".join(map(str, each)) for each in (absent.steps, absent.there))
    return (f", steps {steps}" if steps else "") + (f" (steps {there} are there)" if there else "")


def _series(case: Case) -> Iterator[Missing]:
    steps = (case.start.step, *case.steps)
    yield from _checkpoints(case, "checkpoints of the reference", case.reference, _of_reference(case))
    if case.sibling:
        yield from _checkpoints(case, "checkpoints of the sibling", case.sibling.reference, steps)
    if declared := case.sibling_distance:
        yield from _checkpoints(case, "checkpoints of the counterpart", declared.counterpart, steps)
        for name, pair in declared.pairs.items():
            for side in (pair.a, pair.b):
                yield from _checkpoints(
                    case, f"checkpoints of the couple {name}", side, (case.start.step, case.deciding_step)
                )
    if case.palimpsest and (outsider := case.palimpsest.outsider) and not _is_here(case.at(outsider)):
        yield _missing(case, "checkpoint of the outsider", case.at(outsider))
    for name, given in case.elsewhere.items():
        if not _is_here(case.at(given.runs)):
            yield _missing(case, f"checkpoints of {name!r}, trained elsewhere", case.at(given.runs))


def _of_reference(case: Case) -> tuple[int, ...]:
    windows = case.delta_loss.windows if case.delta_loss else ()
    ranks = (case.palimpsest.step,) if case.palimpsest else ()
    return tuple(sorted({case.start.step, *case.steps, *(step for window in windows for step in window), *ranks}))


def _checkpoints(case: Case, what: str, reference: Reference, wanted: Sequence[int]) -> Iterator[Missing]:
    place = case.at(reference.checkpoints)
    try:
        there = steps_in(place) if _is_here(place) else {}
    except PretraceError:
        there = {}  # an empty folder
    if absent := tuple(step for step in wanted if step not in there):
        yield _missing(case, what, place, absent, tuple(there))


def _tokens(case: Case) -> Iterator[Missing]:
    main, beside = recipes_of(case)
    for name in case.replayed:
        yield from _sources(case, f"tokens of {name!r}", hypothesis_recipe(case, main, name))
    if beside:
        yield from _sources(case, "tokens of the sibling", beside)


def _sources(case: Case, what: str, recipe: Recipe) -> Iterator[Missing]:
    for source in recipe.data.sources:
        if "://" in source.path:
            continue
        names = [f"{source.path.removesuffix('.bin').removesuffix('.idx')}{end}" for end in (".bin", ".idx")]
        for name in names if source.format == "bin_idx" else [source.path]:
            if not (glob.glob(name) if "*" in name else _is_here(name)):
                yield _missing(case, what, name)


def _missing(case: Case, what: str, path: str, steps: tuple[int, ...] = (), there: tuple[int, ...] = ()) -> Missing:
    """`path` as this process finds it."""
    return Missing(what, os.path.abspath(path), steps, there, _fetch(case, os.path.abspath(path)))


def _fetch(case: Case, target: str) -> str:
    """The words of the case file for this path: those of the longest key that names it, its folder, or its pair of files."""
    whole = {key: os.path.abspath(case.at(key)) for key in case.fetch}
    keys = [key for key, name in whole.items() if target == name or target.startswith((f"{name}/", f"{name}."))]
    return case.fetch[max(keys, key=len)] if keys else ""


def _is_here(path: str) -> bool:
    return "://" in path or Path(path).exists()
