"""Computes one update: plays every rank, reduces in the plan's order, unscales, clips, moves the parameters.

read and count -> weigh tokens -> play ranks -> reduce -> unscale and clip -> optimizer -> outcome
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretrace.step.buckets import phase_of
from pretrace.step.clip import total_norm, unscale_and_clip
from pretrace.step.denominators import Counts, counts_of, losses_under_all, weigh
from pretrace.step.evaluate import Books, Player, Read, count_table, read_batches, unflatten
from pretrace.step.kernels import in_force
from pretrace.step.loss_scale import advance
from pretrace.step.loss_spec import Denominator
from pretrace.step.optim import norm, update
from pretrace.step.plan import StepPlan
from pretrace.step.reducer import Reduced, reduce_ranks, route
from pretrace.step.schedule import lr_at
from pretrace.step.state import StepState
from pretrace.step.visits import UNBOUNDED, Budget


@dataclass(frozen=True, slots=True)
class LogitStats:
    """Statistics of all logits of an update."""

    mean: float
    rms: float
    max: float
    lse: float  # mean log-sum-exp over counted positions, in nats


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one update did."""

    step: int  # updates done before this one
    loss: Mapping[Denominator, float]  # cross entropy in nats under every denominator; the plan's own is among them
    z_loss: Mapping[Denominator, float]
    denominator: Denominator  # the plan's
    n_counted: int  # labels that the loss looked at
    n_positions: int
    lr: float
    grad_norm: float  # of the unscaled gradient, before clipping
    clip_coefficient: float  # 1: nothing was clipped
    loss_scale: float  # of this update
    skipped: bool  # an overflow: parameters, moments and schedule stayed where they were
    param_norm: float  # after the update
    update_norm: float
    logits: LogitStats
    evaluations: int  # micro-batches evaluated, repetitions for want of memory included
    peak_parked_bytes: int  # gradients that waited for their turn in the order


def gradients(
    plan: StepPlan, state: StepState, read: Read, *, step: int, budget: Budget = UNBOUNDED
) -> tuple[list[Tensor], Counts, Books, Reduced]:
    """The reduced gradient of one update, still scaled and not clipped, in the order of `state.params`.

    Raises
    ------
    PretraceError
        If batches do not fit the plan, or the reduction cannot be done.
    """
    batches = read_batches(plan, read, step, range(plan.world_size))
    table = count_table(plan, batches)
    counts = counts_of(plan.loss, table[..., :2], int(table[..., 2].sum()))
    weights = weigh(plan.loss, counts, mean=plan.reduction.takes_mean, scale=state.loss_scale.scale)
    books = Books(np.zeros(counts.labels.shape), np.zeros(counts.labels.shape))
    player = Player(plan, state, batches, weights, books)
    shapes = [p.shape for p in state.params.values()]
    phase = phase_of(plan.reduction.buckets, step=step, updates_since_start=state.updates_since_start)
    key = (plan.digest(), phase, budget)
    with in_force(plan.kernels, state.params, state.device.type):
        if phase == "later" and state.arrival is None:
            player.listen()
        way = state.routes.get(key) or state.routes.setdefault(key, route(plan, state, phase, budget))
        reduced = reduce_ranks(plan, state, player, way, budget)
    total = reduced.total
    if weights.final_divisor != 1.0 and not plan.reduction.is_exact:
        total.div_(weights.final_divisor)
    return unflatten(total, way.placed, shapes), counts, books, reduced


def execute(plan: StepPlan, state: StepState, read: Read, *, step: int, budget: Budget = UNBOUNDED) -> StepOutcome:
    """Computes the update that follows `step` updates, in place, and says what it did.

    Parameters
    ----------
    read : the micro-batch at a range of positions; a pure function.
    step : updates done so far, skipped ones included; it says which positions are read. The learning rate follows
        the updates that were applied (`state.optimizer.step`).
    budget : memory for gradients that wait for their turn; changes no bit.

    Raises
    ------
    PretraceError
        If batches do not fit the plan, or a gradient is not finite and the plan has no loss scale.
    """
    grads, counts, books, reduced = gradients(plan, state, read, step=step, budget=budget)
    scale = state.loss_scale.scale
    scaled_norm = total_norm(grads, plan.clip.norm if plan.clip else "tensors")
    overflow = not bool(torch.isfinite(scaled_norm)) and not all(bool(torch.isfinite(g).all()) for g in grads)
    state.loss_scale, skipped = advance(plan.loss_scale, state.loss_scale, overflow=overflow)
    lr = lr_at(plan.schedule, state.optimizer.step)
    coefficient, moved = 1.0, 0.0
    if not skipped:
        coefficient = unscale_and_clip(grads, plan.clip, scaled_norm, scale)
        moved = _move(plan, state, grads, lr)
    state.updates_since_start += 1
    sums = books.logits
    return StepOutcome(
        step=step,
        loss=losses_under_all(books.losses, counts),
        z_loss=losses_under_all(books.z_losses, counts),
        denominator=plan.loss.denominator,
        n_counted=int(counts.labels.sum()),
        n_positions=counts.positions,
        lr=lr,
        grad_norm=float(scaled_norm) / scale,
        clip_coefficient=coefficient,
        loss_scale=scale,
        skipped=skipped,
        param_norm=norm(state.params.values()),
        update_norm=moved,
        logits=LogitStats(
            sums.total / max(sums.numel, 1),
            (sums.square / max(sums.numel, 1)) ** 0.5,
            sums.maximum,
            sums.lse / max(sums.n_lse, 1),
        ),
        evaluations=reduced.evaluations,
        peak_parked_bytes=reduced.peak_parked_bytes,
    )


def _move(plan: StepPlan, state: StepState, grads: list[Tensor], lr: float) -> float:
    """Applies the optimizer; returns the norm of what moved."""
    before = [p.detach().clone() for p in state.params.values()]
    named = {name: p.detach() for name, p in state.params.items()}
    update(plan.optimizer, state.optimizer, named, dict(zip(named, grads)), lr)
    torch._foreach_sub_(before, list(named.values()))
    return norm(before)
