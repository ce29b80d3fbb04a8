"""Hypotheses that were trained elsewhere: their published steps beside the replays, marked "not replayed here".

Whoever trained them chose the machine, the stack and what to publish, and there are no benign reruns of them here. So they are
described: the uncentred distances always; the centred score and the place among the decoys where a hypothesis that is replayed
here has the same data, so that its decoys are decoys of this run too; and how near they come to our own replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pretrace.provenance.centred as centred
from pretrace.errors import PretraceError
from pretrace.provenance import Gram
from pretrace.recipe import Recipe
from pretrace.recipe import load as load_recipe
from pretrace.retrace.case import Case
from pretrace.retrace.evidence import REFERENCE, products
from pretrace.retrace.integrity import check
from pretrace.retrace.parts import Elsewhere, Reference
from pretrace.retrace.plan import Plan
from pretrace.retrace.published import Published, read_what_is_there, same_vector
from pretrace.retrace.runs import vector_path
from pretrace.retrace.series import steps_in

NOT_REPLAYED = "not replayed here"


@dataclass(frozen=True, slots=True)
class ElsewhereStep:
    """A run that was made elsewhere against the reference, at one step. Nothing here decides."""

    step: int
    p_cos: float
    one_minus_p_cos: float
    u_cos: float
    l2: float
    centred: float | None  # None where no decoys here are of its data
    share: float | None
    above_decoys: int | None  # how many of the decoys score below it
    n_decoys: int
    to_hypotheses: dict[str, float]  # U.Cos to the base rerun of each hypothesis: how near our own replays come to it


@dataclass(frozen=True, slots=True)
class ElsewhereFound:
    """One hypothesis that was trained elsewhere."""

    name: str
    mark: str  # "not replayed here"
    runs: str
    recipe_digest: str
    decoys_of: str  # the hypothesis replayed here whose decoys are of the same data; empty where there is none
    steps: tuple[ElsewhereStep, ...]
    why_not: str = ""  # why it could not be compared


def elsewhere(
    case: Case, todo: Plan, published: Published, made: Mapping[str, Path], keep: Path
) -> tuple[ElsewhereFound, ...]:
    """Every hypothesis that was trained elsewhere, at the declared steps that its series has."""
    return tuple(
        _found(case, name, given, todo, published, made, keep / name.replace("/", "_"))
        for name, given in case.elsewhere.items()
    )


def _found(
    case: Case, name: str, given: Elsewhere, todo: Plan, published: Published, made: Mapping[str, Path], keep: Path
) -> ElsewhereFound:
    recipe = load_recipe(case.at(given.recipe))
    decoys_of = same_data(case, recipe, todo)
    place = case.at(given.runs)

    def comes_to(steps: Sequence[ElsewhereStep] = (), why: str = "") -> ElsewhereFound:
        return ElsewhereFound(name, NOT_REPLAYED, given.runs, recipe.digest(), decoys_of, tuple(steps), why)

    try:
        theirs = read_what_is_there(
            Reference(checkpoints=place, dtype=case.reference.dtype), case.start.step, case.steps, keep
        )
    except PretraceError as error:
        return comes_to(why=error.what)
    if why := _unlike(theirs, published):
        return comes_to(why=why)
    shared = [step for step in case.steps if step in theirs.vectors]
    return comes_to([_step(step, decoys_of, todo, published, theirs, made) for step in shared])


def _unlike(theirs: Published, published: Published) -> str:
    """Why a series cannot be set beside the reference; empty if it can."""
    if theirs.segments != published.segments:
        return "it has other parameters than the reference"
    if not same_vector(theirs.origin, published.origin):
        return f"its step {theirs.first} is not the reference's: it did not start from the same values"
    findings = check(
        steps_in(theirs.reference.checkpoints), theirs.vectors, theirs.reference.dtype, theirs.reference.checkpoints
    )
    return next((finding.what for finding in findings if finding.severity == "error"), "")


def same_data(case: Case, recipe: Recipe, todo: Plan) -> str:
    """The hypothesis replayed here whose decoys are orders of this recipe's data; empty where there is none.

    Same data means: the same sources and sample length, known by content where it is declared.
    """
    mine = _data(recipe)
    return next((name for name in case.replayed if _data(todo.rows[todo.base(name)]) == mine), "")


def _data(recipe: Recipe) -> tuple[object, ...]:
    return recipe.data.seq_len, tuple(source.digest() for source in recipe.data.sources)


def _step(
    step: int, decoys_of: str, todo: Plan, published: Published, theirs: Published, made: Mapping[str, Path]
) -> ElsewhereStep:
    decoys = todo.runs[decoys_of].decoys if decoys_of else ()
    bases = {name: todo.base(name) for name in todo.runs}
    rows = {REFERENCE: published.vectors[step], NOT_REPLAYED: theirs.vectors[step]}
    rows |= {row: vector_path(made[row], step) for row in (*bases.values(), *decoys)}
    gram, _ = products(published.origin, rows, published.segments, published.reference.dtype)
    return described(gram, step, decoys, bases)


def described(gram: Gram, step: int, decoys: Sequence[str], bases: Mapping[str, str]) -> ElsewhereStep:
    """The numbers of one step from the inner products."""
    reference, own = gram.one(REFERENCE), gram.one(NOT_REPLAYED)
    apart = centred.one_minus_p_cos(gram, reference, own)
    score = share = above = None
    if decoys:
        # Each order is centred on the mean of all the others, as in the exact rank of a replayed hypothesis.
        mean = gram.mean(decoys)
        score, share = (each(gram, reference, own, mean) for each in (centred.score, centred.share))
        others = [
            centred.score(gram, reference, gram.one(d), gram.mean([NOT_REPLAYED, *(o for o in decoys if o != d)]))
            for d in decoys
        ]
        above = sum(each < score for each in others)
    near = {name: gram.cosine(own, gram.one(row)) for name, row in bases.items()}
    return ElsewhereStep(
        step,
        1 - apart,
        apart,
        gram.cosine(reference, own),
        gram.distance(reference, own),
        score,
        share,
        above,
        len(decoys),
        near,
    )
