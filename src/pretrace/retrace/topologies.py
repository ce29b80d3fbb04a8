"""The gas and micro-batch table: does dealing the batch otherwise move the gap between data sets, or only the level?

Every named hypothesis runs under every topology, all else as its recipe says, and is compared with the reference by P.Cos, L2
and U.Cos. The level of a topology is the mean of a distance over the data sets; the gap is what the other data set is farther
away than the claim. If gas moves the level alone, a ranking of data sets does not depend on it; if it moves the gap, it may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pretrace.provenance.centred as centred
from pretrace.provenance import Gram
from pretrace.recipe import Recipe
from pretrace.retrace.case import Case, hypothesis_recipe
from pretrace.retrace.evidence import REFERENCE, products
from pretrace.retrace.parts import Dealt, Topologies
from pretrace.retrace.plan import same_batch
from pretrace.retrace.published import Published
from pretrace.retrace.runs import vector_path

Measure = Literal["1 - P.Cos", "L2", "1 - U.Cos"]
Moves = Literal["the gap", "only the level", "neither"]

# A movement of less than this part of the mean gap is called none; the numbers stand beside the word.
_MOVES = 0.1


@dataclass(frozen=True, slots=True)
class Cell:
    """One hypothesis under one topology at one step, against the reference."""

    hypothesis: str
    world_size: int
    grad_accum_steps: int
    micro_batch: int
    published: bool  # the last topology of the block
    step: int
    p_cos: float
    one_minus_p_cos: float
    u_cos: float
    l2: float


@dataclass(frozen=True, slots=True)
class Movement:
    """What the topologies move of one measure between two hypotheses at the deciding step."""

    measure: Measure
    near: str  # the claim, or the first of the block where the claim is not in it
    far: str
    gap: float  # mean over topologies of far minus near
    gap_low: float
    gap_high: float
    level_low: float  # of the mean of both
    level_high: float
    gap_moved: float  # how far the gap moves, in parts of itself
    level_moved: float  # how far the level moves, in parts of the gap
    moves: Moves


@dataclass(frozen=True, slots=True)
class TopologyTable:
    """The table and its answer."""

    cells: tuple[Cell, ...]
    movements: tuple[Movement, ...]
    answer: str


def rows_of(case: Case, declared: Topologies, recipe: Recipe) -> dict[str, Recipe]:
    """Row -> recipe: every named hypothesis under every topology.

    Raises
    ------
    PretraceError
        If a topology changes the global batch.
    """
    rows = {}
    for name in declared.hypotheses:
        for dealt in declared.dealt:
            rows[_row(name, dealt)] = hypothesis_recipe(case, recipe, name, dealt.edits())
            same_batch(recipe, rows[_row(name, dealt)], f"topologies.dealt {_word(dealt)}")
    return rows


def table(case: Case, declared: Topologies, published: Published, made: Mapping[str, Path]) -> TopologyTable:
    """The table at every step, and the answer at the deciding one; `made` holds the runs of `rows_of`."""
    cells = []
    for step in case.steps:
        rows = {REFERENCE: published.vectors[step], **{row: vector_path(run, step) for row, run in made.items()}}
        gram, _ = products(published.origin, rows, published.segments, published.reference.dtype)
        cells += [_cell(gram, name, d, declared, step) for name in declared.hypotheses for d in declared.dealt]
    near = case.claim if case.claim in declared.hypotheses else declared.hypotheses[0]
    movements = movements_of([cell for cell in cells if cell.step == case.deciding_step], near)
    return TopologyTable(tuple(cells), movements, answer(movements, len(declared.dealt)))


def _cell(gram: Gram, name: str, dealt: Dealt, declared: Topologies, step: int) -> Cell:
    reference, update = gram.one(REFERENCE), gram.one(_row(name, dealt))
    apart = centred.one_minus_p_cos(gram, reference, update)
    return Cell(
        name, dealt.world_size, dealt.grad_accum_steps, dealt.micro_batch, dealt == declared.dealt[-1], step, 1 - apart, apart,
        gram.cosine(reference, update), gram.distance(reference, update),
    )  # fmt: skip


def movements_of(cells: Sequence[Cell], near: str) -> tuple[Movement, ...]:
    """What topologies move, for each measure and each hypothesis beside `near`, from the cells of one step."""
    measures: dict[Measure, dict[str, list[float]]] = {"1 - P.Cos": {}, "L2": {}, "1 - U.Cos": {}}
    for cell in cells:
        values: tuple[tuple[Measure, float], ...] = (
            ("1 - P.Cos", cell.one_minus_p_cos), ("L2", cell.l2), ("1 - U.Cos", 1 - cell.u_cos),
        )  # fmt: skip
        for measure, value in values:
            measures[measure].setdefault(cell.hypothesis, []).append(value)
    return tuple(
        _movement(measure, (near, far), by_name)
        for measure, by_name in measures.items() for far in by_name if far != near
    )  # fmt: skip


def _movement(measure: Measure, names: tuple[str, str], values: Mapping[str, Sequence[float]]) -> Movement:
    near, far = names
    gaps = [b - a for a, b in zip(values[near], values[far], strict=True)]
    levels = [(a + b) / 2 for a, b in zip(values[near], values[far], strict=True)]
    mean = sum(gaps) / len(gaps)
    gap_moved, level_moved = _ratio(max(gaps) - min(gaps), mean), _ratio(max(levels) - min(levels), mean)
    moves: Moves = "neither"
    if gap_moved >= _MOVES:
        moves = "the gap"
    elif level_moved >= _MOVES:
        moves = "only the level"
    return Movement(
        measure, near, far, mean, min(gaps), max(gaps), min(levels), max(levels), gap_moved, level_moved, moves
    )


def answer(movements: Sequence[Movement], n: int) -> str:
    """Gap or level, in sentences that carry their numbers."""
    return " ".join(
        _sentence([m for m in movements if m.far == far], n) for far in dict.fromkeys(m.far for m in movements)
    )


def _sentence(movements: Sequence[Movement], n: int) -> str:
    first = movements[0]
    words = list(dict.fromkeys(m.moves for m in movements))
    gap = ", ".join(f"{_percent(m.gap_moved)} ({m.measure})" for m in movements)
    level = ", ".join(f"{_percent(m.level_moved)} ({m.measure})" for m in movements)
    if words == ["neither"]:
        head = "Gas and micro-batch move neither the gap nor the level"
    elif len(words) == 1:
        head = f"Gas and micro-batch move {words[0]}"
    else:
        head = "What gas and micro-batch move depends on the measure: " + ", ".join(
            f"{m.measure} {m.moves}" for m in movements
        )
    turned = [m.measure for m in movements if m.gap_low < 0 < m.gap_high]
    kept = f"its sign turns in {', '.join(turned)}" if turned else f"keeps its sign under all {n} topologies"
    return (
        f"{head} between {first.near!r} and {first.far!r}: the gap moves by {gap} of itself and {kept}; "
        f"the level moves by {level} of the gap."
    )


def _percent(part: float) -> str:
    return f"{100 * part:.2g}%" if part < 1 else f"{100 * part:.0f}%"


def _ratio(part: float, of: float) -> float:
    return part / abs(of) if of else float("inf") if part else 0.0


def _row(name: str, dealt: Dealt) -> str:
    return f"{name}/{_word(dealt)}"


def _word(dealt: Dealt) -> str:
    return f"ranks{dealt.world_size}-gas{dealt.grad_accum_steps}-micro{dealt.micro_batch}"
