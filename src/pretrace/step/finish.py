"""What follows the reduction: the overflow check, unscaling, clipping in its scope, and the optimizer.

`conclude` is the part that virtual ranks and real engines share; how a norm is taken, gradients are scaled and parameters are
moved differs, and is handed in as a `Hands`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrace.dtypes import dtype as dtype_of
from pretrace.step.buckets import Fsdp2
from pretrace.step.clip import sharded_norm, total_norm, unscale_and_clip
from pretrace.step.evaluate import unflatten
from pretrace.step.loss_scale import advance
from pretrace.step.optim import update
from pretrace.step.orders import Exact, paths
from pretrace.step.plan import StepPlan
from pretrace.step.reduce import fold_all
from pretrace.step.reducer import Reduced, Route
from pretrace.step.schedule import lr_at
from pretrace.step.shards import normed_ranges, shards
from pretrace.step.state import StepState
from pretrace.step.telemetry import norm


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a reduced gradient."""

    grad_norm: float  # unscaled, before clipping
    clip_coefficient: float
    loss_scale: float  # of this update
    skipped: bool
    lr: float
    update_norm: float
    param_norm: float  # after the update


@dataclass(frozen=True, slots=True)
class Hands:
    """How one kind of execution does its part of an update."""

    norm: Callable[[], Tensor]  # of the gradient as it came, scaled; 0-dim, the same in every process
    finite: Callable[[], bool]  # whether every element is; asked only where the norm is not
    scale_and_clip: Callable[[Tensor], float]  # in place, by that norm; returns the clip coefficient
    move: Callable[[float], float]  # applies the optimizer with this learning rate; the norm of what moved
    param_norm: Callable[[], float]


def conclude(plan: StepPlan, state: StepState, hands: Hands) -> Finished:
    """Moves the parameters by one update, or skips it where a gradient is not finite.

    Raises
    ------
    PretraceError
        If a gradient is not finite and the plan has no loss scale.
    """
    scale = state.loss_scale.scale
    scaled_norm = hands.norm()
    overflow = not bool(torch.isfinite(scaled_norm)) and not hands.finite()
    state.loss_scale, skipped = advance(plan.loss_scale, state.loss_scale, overflow=overflow)
    lr = lr_at(plan.schedule, state.optimizer.step + state.schedule_offset)
    clipped, moved = 1.0, 0.0
    if not skipped:
        clipped = hands.scale_and_clip(scaled_norm)
        moved = hands.move(lr)
    state.updates_since_start += 1
    return Finished(float(scaled_norm) / scale, clipped, scale, skipped, lr, moved, hands.param_norm())


def finish(plan: StepPlan, state: StepState, way: Route, reduced: Reduced) -> Finished:
    """`conclude` for a reduced gradient that lies flat in this process."""
    scale = state.loss_scale.scale
    grads = unflatten(reduced.total, way.placed, [p.shape for p in state.params.values()])

    def scale_and_clip(scaled_norm: Tensor) -> float:
        if plan.clip is None or plan.clip.scope != "local":
            return unscale_and_clip(grads, plan.clip, scaled_norm, scale)
        clipped = _clip_locally(plan, way, reduced, scale)
        grads[:] = unflatten(reduced.total, way.placed, [p.shape for p in state.params.values()])
        return clipped

    return conclude(
        plan,
        state,
        Hands(
            norm=lambda: _norm(plan, way, reduced.total, grads),
            finite=lambda: all(bool(torch.isfinite(g).all()) for g in grads),
            scale_and_clip=scale_and_clip,
            move=lambda lr: move(plan, state, grads, lr),
            param_norm=lambda: norm(state.params.values()),
        ),
    )


def move(plan: StepPlan, state: StepState, grads: Sequence[Tensor], lr: float) -> float:
    """Applies the optimizer to whole parameters; returns the norm of what moved."""
    named = {name: p.detach() for name, p in state.params.items()}
    return update(plan.optimizer, state.optimizer, named, dict(zip(named, grads)), lr)


def _norm(plan: StepPlan, way: Route, flat: Tensor, grads: Sequence[Tensor]) -> Tensor:
    if plan.clip is None or plan.clip.scope == "local":
        return total_norm(grads, "tensors")
    if plan.clip.scope == "global":
        return total_norm(grads, plan.clip.norm)
    order = plan.reduction.order
    assert not isinstance(order, Exact), "the plan refuses clipping by shards under an exact reduction"
    itemsize = dtype_of("float32").itemsize

    def add_ranks(values: list[Tensor]) -> Tensor:
        return fold_all(values, paths(order, values[0].numel(), itemsize, plan.world_size, "all_reduce"))

    buckets = plan.reduction.buckets
    ranges = normed_ranges(buckets, way.placed, plan.world_size, len(grads))
    return sharded_norm(flat, ranges, add_ranks, tensors_first=isinstance(buckets, Fsdp2))


def _clip_locally(plan: StepPlan, way: Route, reduced: Reduced, scale: float) -> float:
    """Every rank clips its part of the reduced gradient by the norm of its own unreduced one; the mean coefficient."""
    coefficients = []
    for mine, own in zip(shards(way.placed, plan.world_size), reduced.rank_norms):
        held = [reduced.total[p.at : p.at + p.stop - p.start] for p in mine]
        coefficients.append(unscale_and_clip(held, plan.clip, own, scale) if held else 1.0)
    return sum(coefficients) / len(coefficients)
