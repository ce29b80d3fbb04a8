"""What a case costs before it starts, and what a budget would buy: runs, updates, tokens, hours and money.

The count is 6 floating-point operations a parameter and token (forward and backward of a dense decoder; attention and
re-computation left out), at the rate that the machine is said to sustain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pretrace.model.spec import ModelSpec, tensor_shapes
from pretrace.provenance import RULES
from pretrace.recipe import Recipe
from pretrace.retrace.case import Case, recipes_of
from pretrace.retrace.plan import plan, sibling_plan
from pretrace.retrace.topologies import rows_of

_MORE_DECOYS = 99  # reach p = 0.01


@dataclass(frozen=True, slots=True)
class Machine:
    """What one device sustains and costs."""

    flop_per_s: float  # sustained, not the data sheet's: 4e14 is an H100 at 40%
    price_per_hour: float  # in any currency


@dataclass(frozen=True, slots=True)
class Cost:
    """A plan and its price."""

    deciding_step: int
    decoys: int
    runs: int  # equal ones counted once
    updates: int  # of all runs
    tokens: int
    hours: float  # on one device
    money: float


def cost(case: Case, machine: Machine) -> Cost:
    """What the case costs as it is declared."""
    return _cost(_runs(case, case.decoys.count), case, machine, case.deciding_step, case.decoys.count)


def affordable(case: Case, machine: Machine, hours: float) -> Cost | None:
    """The best plan within `hours`: the latest declared step that 19 decoys can be had at, then 99 decoys if they fit too."""
    few = _runs(case, RULES.min_decoys)
    plans = [_cost(few, case, machine, step, RULES.min_decoys) for step in sorted(case.steps, reverse=True)]
    fits = next((each for each in plans if each.hours <= hours), None)
    if fits is None:
        return None
    more = _cost(_runs(case, _MORE_DECOYS), case, machine, fits.deciding_step, _MORE_DECOYS)
    return more if more.hours <= hours else fits


def _runs(case: Case, decoys: int) -> list[Recipe]:
    """The runs of the case with `decoys` a hypothesis; equal ones are made once."""
    case = case.model_copy(update={"decoys": case.decoys.model_copy(update={"count": decoys})})
    main, sibling = recipes_of(case)
    rows = list(plan(case, main).rows.values()) + (list(sibling_plan(case, sibling).rows.values()) if sibling else [])
    rows += list(rows_of(case, case.topologies, main).values()) if case.topologies else []
    return list({recipe.digest(): recipe for recipe in rows}.values())


def _cost(runs: list[Recipe], case: Case, machine: Machine, step: int, decoys: int) -> Cost:
    # From the middle of a run the burn-in costs its gradients too.
    updates = step - case.start.step + case.start.burn_in
    tokens = sum(updates * recipe.step.global_batch * recipe.data.seq_len for recipe in runs)
    hours = sum(updates * flop_of_update(recipe) for recipe in runs) / machine.flop_per_s / 3600
    return Cost(step, decoys, len(runs), updates * len(runs), tokens, hours, hours * machine.price_per_hour)


def flop_of_update(recipe: Recipe) -> float:
    """Floating-point operations of one update.

    Pythia-2.8b, 1024 sequences of 2048 tokens: 6 * 2.8e9 * 2.1e6 = 3.5e16.
    """
    return 6.0 * n_parameters(recipe.model) * recipe.step.global_batch * recipe.data.seq_len


def n_parameters(spec: ModelSpec) -> int:
    """Elements of all tensors."""
    return sum(math.prod(shape) for shape in tensor_shapes(spec).values())
