"""Reduces one update's gradients over all ranks of a plan, whichever order it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrace.dtypes import dtype as dtype_of
from pretrace.step.buckets import Layout
from pretrace.step.evaluate import Player, flat_buffer
from pretrace.step.exact import ExactSum
from pretrace.step.orders import Exact, Path, Summed, paths
from pretrace.step.plan import StepPlan
from pretrace.step.reduce import Fold, from_wire, to_wire
from pretrace.step.state import StepState


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduced gradient of one update and what it took."""

    total: Tensor  # flat, in the layout's order, dtype of the parameters
    evaluations: int  # micro-batches evaluated
    peak_parked_bytes: int


def reduce_ranks(plan: StepPlan, state: StepState, player: Player, placed: Layout, *, first: bool) -> Reduced:
    """Plays all ranks and adds their gradients in the plan's order."""
    order = plan.reduction.order
    if isinstance(order, Exact):
        return _exact(plan, state, player, placed, order)
    return _ordered(plan, state, player, placed, order, first=first)


def _ordered(
    plan: StepPlan, state: StepState, player: Player, placed: Layout, order: Summed, *, first: bool
) -> Reduced:
    world, wire = plan.world_size, getattr(torch, plan.reduce_dtype)
    ops = plan.reduction.scaling_first if first else plan.reduction.scaling
    itemsize = dtype_of(plan.reduce_dtype).itemsize
    along = [paths(order, b - a, itemsize, world, plan.reduction.collective) for a, b in placed.buckets]
    out = flat_buffer(state, "sum", placed.numel, torch.float32 if order.sum_dtype == "float32" else wire)
    folds = [Fold(path, out[a:b]) for path, (a, b) in zip(along, placed.buckets)]
    peak = 0
    for rank in visiting_order(along, world):
        flat = player.rank_gradient(rank)
        for fold, (a, b) in zip(folds, placed.buckets):
            fold.add(rank, to_wire(flat[a:b], ops, world, wire))
        peak = max(peak, sum(fold.parked for fold in folds))
    final = state.dtype
    total = flat_buffer(state, "total", placed.numel, final)
    for fold, (a, b) in zip(folds, placed.buckets):
        total[a:b] = from_wire(fold.result(), ops, world, wire, final)
    return Reduced(total, player.evaluations, peak)


def _exact(plan: StepPlan, state: StepState, player: Player, placed: Layout, order: Exact) -> Reduced:
    whole = flat_buffer(state, "integers", placed.numel, torch.int64).zero_()
    total = ExactSum(whole, order.exponent, plan.world_size * plan.grad_accum_steps)
    for rank in range(plan.world_size):
        for flat in player.micro_gradients(rank):
            total.add(flat)
    value = total.value(player.weights.final_divisor, state.dtype)
    return Reduced(value, player.evaluations, 0)


def visiting_order(along: Sequence[Sequence[Path]], world_size: int) -> range:
    """The order in which one process plays the ranks so that as few pieces as possible wait.

    A ring visits the ranks as a rotation that differs from chunk to chunk; gloo's runs downwards, NCCL's upwards.
    """
    votes = 0
    for path in (p for bucket in along for p in bucket):
        if isinstance(path.nesting, tuple) and len(path.nesting) > 1:
            a, b = path.nesting[:2]
            if isinstance(a, int) and isinstance(b, int):
                votes += 1 if (a - b) % world_size == 1 and world_size > 2 else -1
    return range(world_size - 1, -1, -1) if votes > 0 else range(world_size)
