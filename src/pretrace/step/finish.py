"""What follows the reduction: the norm, the overflow check, unscaling, clipping in its scope, and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrace.dtypes import dtype as dtype_of
from pretrace.step.buckets import Fsdp2, normed_ranges, shards
from pretrace.step.clip import sharded_norm, total_norm, unscale_and_clip
from pretrace.step.evaluate import unflatten
from pretrace.step.loss_scale import advance
from pretrace.step.optim import norm, update
from pretrace.step.orders import Exact, paths
from pretrace.step.plan import StepPlan
from pretrace.step.reduce import fold_all
from pretrace.step.reducer import Reduced, Route
from pretrace.step.schedule import lr_at
from pretrace.step.state import StepState


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a reduced gradient."""

    grad_norm: float  # unscaled, before clipping
    clip_coefficient: float
    skipped: bool
    lr: float
    update_norm: float


def finish(plan: StepPlan, state: StepState, way: Route, reduced: Reduced) -> Finished:
    """Moves the parameters by one update, in place, or skips it where a gradient is not finite.

    Raises
    ------
    PretraceError
        If a gradient is not finite and the plan has no loss scale.
    """
    grads = unflatten(reduced.total, way.placed, [p.shape for p in state.params.values()])
    scale = state.loss_scale.scale
    scaled_norm = _norm(plan, way, reduced.total, grads)
    overflow = not bool(torch.isfinite(scaled_norm)) and not all(bool(torch.isfinite(g).all()) for g in grads)
    state.loss_scale, skipped = advance(plan.loss_scale, state.loss_scale, overflow=overflow)
    lr = lr_at(plan.schedule, state.optimizer.step)
    if skipped:
        return Finished(float(scaled_norm) / scale, 1.0, True, lr, 0.0)
    if plan.clip is not None and plan.clip.scope == "local":
        clipped = _clip_locally(plan, way, reduced, scale)
        grads = unflatten(reduced.total, way.placed, [p.shape for p in state.params.values()])
    else:
        clipped = unscale_and_clip(grads, plan.clip, scaled_norm, scale)
    return Finished(float(scaled_norm) / scale, clipped, False, lr, _move(plan, state, grads, lr))


def _norm(plan: StepPlan, way: Route, flat: Tensor, grads: list[Tensor]) -> Tensor:
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
        coefficients.append(unscale_and_clip(held, plan.clip, own, scale))
    return sum(coefficients) / len(coefficients)


def _move(plan: StepPlan, state: StepState, grads: list[Tensor], lr: float) -> float:
    """Applies the optimizer; returns the norm of what moved."""
    before = [p.detach().clone() for p in state.params.values()]
    named = {name: p.detach() for name, p in state.params.items()}
    update(plan.optimizer, state.optimizer, named, dict(zip(named, grads)), lr)
    torch._foreach_sub_(before, list(named.values()))
    return norm(before)
