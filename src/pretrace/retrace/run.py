"""A case from its file to its verdict: lock, integrity, rivals, runs, evidence, decision.

Each stage is a function that can be used alone; a stage that ends the case says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pretrace.retrace.case as cases
from pretrace.data import first_difference, open_order
from pretrace.digest import xxh3_of_file
from pretrace.errors import PretraceError
from pretrace.executor import Workers
from pretrace.provenance import RULES, Gram, Judged, judge
from pretrace.recipe import Recipe
from pretrace.recipe.spec import BurntInMoments, StartSpec
from pretrace.retrace.assemble import Beside, Known, conclude, ended, unusable
from pretrace.retrace.case import Case
from pretrace.retrace.elsewhere import elsewhere
from pretrace.retrace.evidence import REFERENCE, products
from pretrace.retrace.forms import merge_forms
from pretrace.retrace.inputs import refuse_missing
from pretrace.retrace.integrity import check
from pretrace.retrace.plan import Plan, noise_floor, plan, sibling_plan
from pretrace.retrace.published import Published, read_reference, same_vector
from pretrace.retrace.result import CaseResult, RivalDifference
from pretrace.retrace.runs import Advance, Replay, make_all, vector_path
from pretrace.retrace.series import open_canonical, steps_in
from pretrace.retrace.stages import before_replay
from pretrace.retrace.topologies import TopologyTable, rows_of, table


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """What a caller may want to hear of while a case runs."""

    locked: Callable[[str], None] = _silent  # the digest, before the reference is read
    advance: Advance = _silent
    tell: Callable[[str], None] = _silent  # what is being done, where no runs are counted


QUIET = Watch()
_LOOK_AHEAD = 16  # times the deciding step: how far orders are compared to say from when on they could be told apart


def run(case: Case, out: str | Path, *, workers: int | Workers = 2, watch: Watch = QUIET) -> CaseResult:
    """The verdict on a case; runs are kept under `out`, so that a stopped case goes on.

    Raises
    ------
    PretraceError
        If the case, a recipe or the reference cannot be read, or a run fails.
    """
    begun, out = time.monotonic(), Path(out)
    recipe, sibling_recipe = cases.recipes_of(case)
    digest = cases.lock(case, (recipe, sibling_recipe))
    watch.locked(digest)
    refuse_missing(case)
    case, forms = merge_forms(case)
    todo = plan(case, recipe)
    rivals = rival_differences(case, todo)

    published = read_reference(case.located(case.reference), case.start.step, case.steps, out / "reference")
    place = published.reference.checkpoints
    findings = (*check(steps_in(place), published.vectors, case.reference.dtype, place), *forms)
    findings += noise_floor(todo, case.claim)
    known = Known(case, recipe, digest, rivals, findings, todo, begun, out)
    if any(finding.severity == "error" for finding in findings):
        return unusable(known)
    known = replace(known, before=before_replay(case, out, watch.tell))
    if known.before.ending:
        return ended(known, known.before.ending)
    return _replay(known, published, sibling_recipe, workers, watch)


def _replay(
    known: Known, published: Published, sibling_recipe: Recipe | None, workers: int | Workers, watch: Watch
) -> CaseResult:
    """The deciding stage: all runs, then the evidence."""
    case, todo, out = known.case, known.todo, known.out
    wanted = replays(todo.rows, published, case, out / "runs")
    dealt = rows_of(case, case.topologies, known.recipe) if case.topologies else {}
    wanted |= {f"dealt:{row}": replay for row, replay in replays(dealt, published, case, out / "runs").items()}
    beside: tuple[Plan, Published] | None = None
    if case.sibling and sibling_recipe:
        control = read_reference(case.located(case.sibling.reference), case.start.step, case.steps, out / "sibling")
        _refuse_itself(published, control, case)
        beside = sibling_plan(case, sibling_recipe), control
        rows = replays(beside[0].rows, control, case, out / "runs")
        wanted |= {f"sibling:{row}": replay for row, replay in rows.items()}
    made = make_all(wanted, workers, watch.advance)

    grams, by_tensor = all_products(case, published, {row: made[row] for row in todo.rows})
    sibling = judge_sibling(case, *beside, made) if beside else {}
    own = {row: made[f"dealt:{row}"] for row in dealt}
    shown = Beside(
        table(case, case.topologies, published, own) if case.topologies else None,
        elsewhere(case, todo, published, made, out / "elsewhere"),
    )
    return conclude(known, grams, by_tensor[case.deciding_step], sibling, made, published.log, shown)


def _refuse_itself(published: Published, control: Published, case: Case) -> None:
    """The sibling is the licence to contradict the reference, so it cannot be the reference."""
    if same_vector(published.vectors[case.deciding_step], control.vectors[case.deciding_step]):
        raise PretraceError(
            f"the sibling's step {case.deciding_step} is the reference's, bit for bit: it cannot vouch for itself",
            control.reference.checkpoints,
            "name a run whose data nobody doubts, or `sibling: null` with the reason",
        )


def gas_table(case: Case, out: str | Path, *, workers: int | Workers = 2, watch: Watch = QUIET) -> TopologyTable:
    """The table of gas and micro-batch alone: trains its runs only, and judges nothing.

    Raises
    ------
    PretraceError
        If the case declares no `topologies`, or cannot be read or run.
    """
    if case.topologies is None:
        raise PretraceError(
            "the case declares no topologies", case.place, "add the block `topologies` (see `retrace init`)"
        )
    out = Path(out)
    recipe, _ = cases.recipes_of(case)
    refuse_missing(case)
    published = read_reference(case.located(case.reference), case.start.step, case.steps, out / "reference")
    wanted = replays(rows_of(case, case.topologies, recipe), published, case, out / "runs")
    return table(case, case.topologies, published, make_all(wanted, workers, watch.advance))


def rival_differences(case: Case, todo: Plan) -> tuple[RivalDifference, ...]:
    """From which step on each rival's batches differ from the claim's; looks beyond the deciding step for the remedy."""
    mine = todo.rows[todo.base(case.claim)]
    order = open_order(mine.data)
    found = []
    for name in case.replayed:
        if name == case.claim:
            continue
        other = open_order(todo.rows[todo.base(name)].data)
        horizon = max(mine.steps, _LOOK_AHEAD * case.deciding_step)
        difference = first_difference(order, other, mine.step.global_batch, horizon)
        # Update k + 1 reads batch k: states are equal up to step k.
        step = None if difference.first_step is None else difference.first_step + 1
        found.append(RivalDifference(name, step, difference.steps, difference.common_samples))
    return tuple(found)


def replays(rows: Mapping[str, Recipe], published: Published, case: Case, folder: Path) -> dict[str, Replay]:
    """Every row as a run from the published start."""
    digest = xxh3_of_file(published.origin)
    start = str(published.start)
    edits = _from_the_middle(case, published) if case.start.step else {}
    return {
        row: Replay(recipe.with_values(edits), case.steps, start, digest, published.reference.dtype, str(folder))
        for row, recipe in rows.items()
    }


def _from_the_middle(case: Case, published: Published) -> dict[str, Any]:
    from pretrace.train.start import content_of  # imports torch

    with open_canonical(published.start) as view:
        content = content_of(view)
    moments = BurntInMoments(kind="burn_in", updates=case.start.burn_in)
    start = StartSpec(path=str(published.start), content=content, step=case.start.step, moments=moments)
    return {"start": start.model_dump(mode="json")}


def all_products(
    case: Case, published: Published, made: Mapping[str, Path]
) -> tuple[dict[int, Gram], dict[int, dict[str, Gram]]]:
    """The inner products at every step: whole, and by tensor."""
    whole, by_tensor = {}, {}
    for step in case.steps:
        rows = {REFERENCE: published.vectors[step], **{row: vector_path(run, step) for row, run in made.items()}}
        whole[step], by_tensor[step] = products(published.origin, rows, published.segments, published.reference.dtype)
    return whole, by_tensor


def judge_sibling(case: Case, todo: Plan, published: Published, made: Mapping[str, Path]) -> dict[int, Judged]:
    """The sibling against its own true recipe and its own decoys, at every step."""
    grams, _ = all_products(case, published, {row: made["sibling:" + row] for row in todo.rows})
    return {step: judge(gram, "sibling", REFERENCE, todo.runs["sibling"], RULES) for step, gram in grams.items()}
