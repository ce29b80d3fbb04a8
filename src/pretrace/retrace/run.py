"""A case from its file to its verdict: lock, integrity, rivals, runs, evidence, decision.

Each stage is a function that can be used alone; a stage that ends the case says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pretrace.retrace.case as cases
from pretrace.data import first_difference, open_order
from pretrace.digest import xxh3_of_file
from pretrace.dtypes import from_float32
from pretrace.errors import PretraceError
from pretrace.executor import Workers
from pretrace.files import atomic_file
from pretrace.provenance import RULES, Gram, Judged, judge
from pretrace.recipe.spec import BurntInMoments, StartSpec
from pretrace.retrace.assemble import Known, conclude, unusable
from pretrace.retrace.case import Case, Reference
from pretrace.retrace.evidence import REFERENCE, products
from pretrace.retrace.integrity import check
from pretrace.retrace.plan import Plan, plan, sibling_plan
from pretrace.retrace.result import CaseResult, RivalDifference
from pretrace.retrace.runs import Advance, Replay, make_all, vector_path
from pretrace.retrace.series import Segment, flat, open_canonical, segments_of, steps_in
from pretrace.runlog import Record, records


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """What a caller may want to hear of while a case runs."""

    locked: Callable[[str], None] = _silent  # the digest, before the reference is read
    advance: Advance = _silent


QUIET = Watch()
_LOOK_AHEAD = 16  # times the deciding step: how far orders are compared to say from when on they could be told apart


@dataclass(frozen=True, slots=True)
class Published:
    """A reference as it was published, flattened: step -> file of its flat vector, the start among them."""

    reference: Reference
    vectors: dict[int, Path]
    segments: tuple[Segment, ...]
    first: int  # the step that replays start from
    start: Path  # its checkpoint
    log: tuple[Record, ...]


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
    todo = plan(case, recipe)
    rivals = rival_differences(case, todo)

    published = read_reference(case.reference, case.start.step, case.steps, out / "reference")
    there = steps_in(case.reference.checkpoints)
    findings = check(there, published.vectors, case.reference.dtype, case.reference.checkpoints)
    known = Known(case, recipe, digest, rivals, findings, todo, begun)
    if any(finding.severity == "error" for finding in findings):
        return unusable(known)

    wanted = replays(todo, published, case, out / "runs", "")
    beside: tuple[Plan, Published] | None = None
    if case.sibling and sibling_recipe:
        control = read_reference(case.sibling.reference, case.start.step, case.steps, out / "sibling")
        beside = sibling_plan(case, sibling_recipe), control
        wanted |= replays(beside[0], control, case, out / "runs", "sibling:")
    made = make_all(wanted, workers, watch.advance)

    grams, by_tensor = all_products(case, published, {row: made[row] for row in todo.rows})
    sibling = judge_sibling(case, *beside, made) if beside else {}
    return conclude(known, grams, by_tensor[case.deciding_step], sibling, made, published.log)


def read_reference(reference: Reference, first: int, steps: tuple[int, ...], keep: Path) -> Published:
    """The published parameters at the step `first` and at `steps`, flattened under `keep`.

    Raises
    ------
    PretraceError
        If a step is missing or cannot be read.
    """
    there = steps_in(reference.checkpoints)
    missing = [step for step in (first, *steps) if step not in there]
    if missing:
        raise PretraceError(
            f"the series has no step {', '.join(map(str, missing))}; it has {', '.join(map(str, there))}",
            reference.checkpoints, "add the checkpoints, or declare steps that are there (the start is always needed)",
        )  # fmt: skip
    with open_canonical(there[first]) as view:
        segments = segments_of(view)
    keep.mkdir(parents=True, exist_ok=True)
    vectors = {}
    for step in (first, *steps):
        vectors[step] = vector_path(keep, step)
        with open_canonical(there[step]) as view, atomic_file(vectors[step]) as file:
            np.save(file, from_float32(flat(view, segments).astype(np.float32), reference.dtype))
    log = Path(reference.checkpoints).parent / "log.jsonl"
    return Published(reference, vectors, segments, first, there[first], tuple(records(log)) if log.is_file() else ())


def rival_differences(case: Case, todo: Plan) -> tuple[RivalDifference, ...]:
    """From which step on each rival's batches differ from the claim's; looks beyond the deciding step for the remedy."""
    mine = todo.rows[todo.base(case.claim)]
    order = open_order(mine.data)
    found = []
    for name in case.hypotheses:
        if name == case.claim:
            continue
        other = open_order(todo.rows[todo.base(name)].data)
        horizon = max(mine.steps, _LOOK_AHEAD * case.deciding_step)
        difference = first_difference(order, other, mine.step.global_batch, horizon)
        # Update k + 1 reads batch k: states are equal up to step k.
        step = None if difference.first_step is None else difference.first_step + 1
        found.append(RivalDifference(name, step, difference.steps, difference.common_samples))
    return tuple(found)


def replays(todo: Plan, published: Published, case: Case, folder: Path, prefix: str) -> dict[str, Replay]:
    """Every row of a plan as a run from the published start."""
    digest = xxh3_of_file(published.vectors[published.first])
    start = str(published.start)
    edits = _from_the_middle(case, published) if case.start.step else {}
    return {
        prefix + row: Replay(
            recipe.with_values(edits), case.steps, start, digest, published.reference.dtype, str(folder)
        )
        for row, recipe in todo.rows.items()
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
        whole[step], by_tensor[step] = products(
            published.vectors[published.first], rows, published.segments, published.reference.dtype
        )
    return whole, by_tensor


def judge_sibling(case: Case, todo: Plan, published: Published, made: Mapping[str, Path]) -> dict[int, Judged]:
    """The sibling against its own true recipe and its own decoys, at every step."""
    grams, _ = all_products(case, published, {row: made["sibling:" + row] for row in todo.rows})
    return {step: judge(gram, "sibling", REFERENCE, todo.runs["sibling"], RULES) for step, gram in grams.items()}
