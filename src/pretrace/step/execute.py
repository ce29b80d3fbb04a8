"""Computes one update: plays every rank, reduces in the plan's order, unscales, clips, moves the parameters.

read and count -> weigh tokens -> play ranks -> reduce -> unscale and clip -> optimizer -> outcome
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pretrace.step.buckets import Ddp, Phase, phase_of
from pretrace.step.denominators import Counts, counts_of, weigh
from pretrace.step.evaluate import Books, Player, Read, count_table, open_books, read_batches, unflatten
from pretrace.step.finish import finish
from pretrace.step.kernels import in_force
from pretrace.step.outcome import StepOutcome, outcome_of
from pretrace.step.plan import StepPlan
from pretrace.step.reducer import Reduced, Route, reduce_ranks, route
from pretrace.step.shared import add_everywhere, agreed
from pretrace.step.state import StepState
from pretrace.step.visits import UNBOUNDED, Budget

__all__ = ["Gradient", "StepOutcome", "execute", "gradient"]


@dataclass(frozen=True, slots=True)
class Gradient:
    """The reduced gradient of one update, still scaled and not clipped, and the books of the step."""

    reduced: Reduced
    way: Route
    counts: Counts
    books: Books

    def by_name(self, state: StepState) -> dict[str, Tensor]:
        """The gradient of each parameter; views of buffers that the next update overwrites."""
        return dict(
            zip(state.params, unflatten(self.reduced.total, self.way.placed, [p.shape for p in state.params.values()]))
        )


def gradient(
    plan: StepPlan,
    state: StepState,
    read: Read,
    *,
    step: int,
    group: dist.ProcessGroup | None = None,
    budget: Budget = UNBOUNDED,
) -> Gradient:
    """Plays all ranks of one update and reduces; nothing of the state moves. Arguments as `execute`.

    Raises
    ------
    PretraceError
        If batches do not fit the plan, or the reduction cannot be done.
    """
    batches = agreed(group, lambda: read_batches(plan, read, step, hosted(plan, group)), state.device)
    table = torch.from_numpy(count_table(plan, batches)).to(state.device)
    counted = add_everywhere(table, group).cpu().numpy()
    counts = counts_of(plan.loss, counted[..., :2], int(counted[..., 2].sum()))
    weights = weigh(plan.loss, counts, mean=plan.reduction.takes_mean, scale=state.loss_scale.scale)
    books = open_books(plan)
    player = Player(plan, state, batches, weights, books)
    phase = phase_of(plan.reduction.buckets, step=step, updates_since_start=state.updates_since_start)
    with in_force(plan.kernels, state.params, state.device.type):
        way = _way(plan, state, player, phase, budget)
        reduced = reduce_ranks(plan, state, player, way, budget, group)
    if weights.final_divisor != 1.0 and not plan.reduction.is_exact:
        reduced.total.div_(weights.final_divisor)
    books.complete(group, state.device)
    return Gradient(reduced, way, counts, books)


def hosted(plan: StepPlan, group: dist.ProcessGroup | None) -> range:
    """The ranks that this process plays.

    Raises
    ------
    PretraceError
        If the number of processes does not divide the ranks.
    """
    if group is None:
        return range(plan.world_size)
    return plan.topology.hosted(dist.get_rank(group), dist.get_world_size(group))


def _way(plan: StepPlan, state: StepState, player: Player, phase: Phase, budget: Budget) -> Route:
    """The route of a phase, made once."""
    if phase == "later" and state.arrival is None and isinstance(plan.reduction.buckets, Ddp):
        player.listen()
    known = state.routes.get((phase, budget))
    if known is None or known[0] is not plan:  # the plan itself is kept: the same object is the same plan
        known = state.routes[phase, budget] = (plan, route(plan, state, phase, budget))
    found: Route = known[1]
    return found


def execute(
    plan: StepPlan,
    state: StepState,
    read: Read,
    *,
    step: int,
    group: dist.ProcessGroup | None = None,
    budget: Budget = UNBOUNDED,
) -> StepOutcome:
    """Computes the update that follows `step` updates, in place, and says what it did.

    Parameters
    ----------
    read : the micro-batch at a range of positions; a pure function.
    step : updates done so far, skipped ones included; it says which positions are read. The learning rate follows
        the updates that were applied (`state.optimizer.step`).
    group : processes that share the ranks, as many as divide world_size; None: this one plays all. Changes no bit.
    budget : memory for gradients that wait for their turn; changes no bit.

    Raises
    ------
    PretraceError
        If batches do not fit the plan, or a gradient is not finite and the plan has no loss scale.
    """
    found = gradient(plan, state, read, step=step, group=group, budget=budget)
    done = finish(plan, state, found.way, found.reduced)
    return outcome_of(
        plan,
        step,
        found.counts,
        found.books,
        done,
        evaluations=found.reduced.evaluations,
        peak_parked_bytes=found.reduced.peak_parked_bytes,
    )
