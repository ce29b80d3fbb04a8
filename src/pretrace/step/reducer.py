"""Reduces one update's gradients over all ranks of a plan, whichever order it names, within a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from pretrace.dtypes import dtype as dtype_of
from pretrace.errors import PretraceError
from pretrace.step.buckets import Layout, Phase, layout
from pretrace.step.chains import ChainFold, all_chains
from pretrace.step.evaluate import Player, flat_buffer
from pretrace.step.exact import ExactSum
from pretrace.step.orders import Exact, GlooRing, Path, Summed, paths
from pretrace.step.parking import Parking
from pretrace.step.plan import StepPlan
from pretrace.step.reduce import Fold, from_wire, to_wire
from pretrace.step.reduction_spec import ScaleOp
from pretrace.step.rounds import Cut, rounds
from pretrace.step.shared import SharedBucket, add_everywhere, add_exact, agreed
from pretrace.step.state import StepState
from pretrace.step.visits import Budget, Visits, plan_visits


@dataclass(frozen=True, slots=True)
class Route:
    """Everything about a reduction that is known before a gradient is: the same for all updates of a phase."""

    phase: Phase
    placed: Layout
    along: tuple[tuple[Path, ...], ...]  # the paths of each bucket; empty for an exact reduction
    visits: Visits


@dataclass(frozen=True, slots=True)
class Reduced:
    """The reduced gradient of one update and what it took."""

    total: Tensor  # flat, in the layout's order, dtype of the parameters
    evaluations: int  # micro-batches evaluated
    peak_parked_bytes: int
    rank_norms: tuple[Tensor, ...] = ()  # of each rank's own gradient, where the plan clips by it


def route(plan: StepPlan, state: StepState, phase: Phase, budget: Budget) -> Route:
    """Lays out the buffer and chooses how ranks are played."""
    kernels = plan.kernels
    grads = dtype_of(kernels.compute_dtype if kernels.mixed == "cast" else kernels.param_dtype)
    params = state.described(grads.itemsize)
    placed = layout(plan.reduction.buckets, params, world_size=plan.world_size, phase=phase, arrival=state.arrival)
    order = plan.reduction.order
    if isinstance(order, Exact):
        everyone = tuple(range(plan.world_size))
        return Route(phase, placed, (), Visits(everyone, frozenset(everyone), "park", 0, 0))
    itemsize = dtype_of(plan.reduce_dtype).itemsize
    along = tuple(
        paths(order, stop - start, itemsize, plan.world_size, plan.reduction.collective)
        for start, stop in placed.buckets
    )
    return Route(phase, placed, along, plan_visits([(path, itemsize) for path in along], plan.world_size, budget))


def reduce_ranks(
    plan: StepPlan, state: StepState, player: Player, way: Route, budget: Budget, group: dist.ProcessGroup | None
) -> Reduced:
    """Plays the ranks of this process (all of them without a group) and adds the gradients of all in the plan's order.

    Raises
    ------
    PretraceError
        If a rank that is played twice does not repeat its bits, or an exact sum leaves its range.
    """
    order = plan.reduction.order
    player.place(way.placed)
    if isinstance(order, Exact):
        return _exact(plan, state, player, way.placed, order, group)
    if group is not None and dist.get_world_size(group) > 1:
        return _shared(plan, state, player, way, order, group, budget)
    return _ordered(plan, state, player, way, order, budget)


def scaling_of(plan: StepPlan, phase: Phase) -> tuple[ScaleOp, ...]:
    """The divisions of an update."""
    return plan.reduction.scaling_first if phase == "first" else plan.reduction.scaling


def split_fused(plan: StepPlan, ops: tuple[ScaleOp, ...]) -> tuple[ScaleOp | None, tuple[ScaleOp, ...]]:
    """The division that can be made while the gradient is copied, saving a pass over it, and the ones that are left."""
    kernels = plan.kernels
    grads = kernels.compute_dtype if kernels.mixed == "cast" else kernels.param_dtype
    first = ops[0] if ops else None
    plain = plan.grad_accum_steps == 1 and grads == plan.accum_dtype and plan.loss.divide == "loss"
    if first is None or not plain or first.where != "before_cast" or first.op == "mul_rounded":
        return None, ops
    return first, ops[1:]


def _ordered(plan: StepPlan, state: StepState, player: Player, way: Route, order: Summed, budget: Budget) -> Reduced:
    world, wire = plan.world_size, getattr(torch, plan.reduce_dtype)
    ops = scaling_of(plan, way.phase)
    clips_locally = plan.clip is not None and plan.clip.scope == "local"
    player.fused, ops = (None, ops) if clips_locally else split_fused(plan, ops)
    parking = Parking(budget.parked_bytes, budget.spill if way.visits.mode == "spill" else None)
    out = flat_buffer(state, "sum", way.placed.numel, torch.float32 if order.sum_dtype == "float32" else wire)
    buckets = [
        ((ChainFold if all_chains(path) else Fold)(path, out[a:b], parking), a, b)
        for path, (a, b) in zip(way.along, way.placed.buckets)
    ]
    fingerprints: dict[int, str] = {}
    own_norms: dict[int, Tensor] = {}
    todo = list(way.visits.order)
    try:
        while todo:
            for rank in todo:
                flat = player.rank_gradient(rank)
                if clips_locally:
                    own_norms[rank] = torch.linalg.vector_norm(flat.float())
                if rank not in way.visits.keep:
                    _same_bits(rank, flat, fingerprints)
                for fold, a, b in buckets:
                    fold.add(rank, to_wire(flat[a:b], ops, world, wire), keep=rank in way.visits.keep)
            todo = [rank for rank in way.visits.order if any(fold.wants(rank) for fold, _, _ in buckets)]
    finally:
        parking.close()
    # With one dtype all along, the sum becomes the result where it lies.
    total = out if out.dtype == state.dtype else flat_buffer(state, "total", way.placed.numel, state.dtype)
    for fold, a, b in buckets:
        part = from_wire(fold.result(), ops, world, wire, state.dtype)
        if part.data_ptr() != total[a:b].data_ptr():
            total[a:b] = part
    rank_norms = tuple(own_norms[rank] for rank in sorted(own_norms))
    return Reduced(total, player.evaluations, parking.peak, rank_norms)


def _same_bits(rank: int, flat: Tensor, fingerprints: dict[int, str]) -> None:
    """Replaying a rank is sound only if its backward pass repeats itself."""
    array: Any = flat.cpu().view(torch.uint8).numpy()
    found = xxhash.xxh3_128_hexdigest(array)
    if fingerprints.setdefault(rank, found) != found:
        raise PretraceError(
            f"rank {rank} was played twice and gave two gradients",
            "step.kernels",
            "declare deterministic kernels, or allow enough memory for parking (Budget) so that ranks are played once",
        )


def _shared(
    plan: StepPlan,
    state: StepState,
    player: Player,
    way: Route,
    order: Summed,
    group: dist.ProcessGroup,
    budget: Budget,
) -> Reduced:
    """Ranks played by several processes; one rank each and the backend's own order go through its own all-reduce."""
    if is_native(order, plan.world_size, group):
        return _native(plan, state, player, way, group)
    ops = scaling_of(plan, way.phase)
    world, wire = plan.world_size, getattr(torch, plan.reduce_dtype)
    added = torch.float32 if order.sum_dtype == "float32" else wire
    waiting = 2 * added.itemsize * len(player.hosted)  # pieces that leave, and as many that come
    total = flat_buffer(state, "total", way.placed.numel, state.dtype)
    own_norms = torch.zeros(world, device=state.device)
    fingerprints: dict[int, str] = {}
    parts = rounds(way.placed.buckets, way.along, waiting, budget.parked_bytes)
    peak = 0
    for cuts in parts:
        shares = [SharedBucket(cut.along, cut.stop - cut.start, world, added, group, state.device) for cut in cuts]
        peak = max(peak, sum(share.waiting_bytes for share in shares))

        def play(cuts: tuple[Cut, ...] = cuts, shares: list[SharedBucket] = shares) -> None:
            for rank in (rank for rank in way.visits.order if rank in player.hosted):
                flat = player.rank_gradient(rank)
                own_norms[rank] = torch.linalg.vector_norm(flat.float())
                if len(parts) > 1:
                    _same_bits(rank, flat, fingerprints)
                for cut, share in zip(cuts, shares):
                    share.fold.add(rank, to_wire(flat[cut.start : cut.stop], ops, world, wire))

        agreed(group, play, state.device)
        for cut, share in zip(cuts, shares):
            total[cut.start : cut.stop] = from_wire(share.finish(), ops, world, wire, state.dtype)
    return Reduced(total, player.evaluations, peak, tuple(add_everywhere(own_norms, group)))


def _native(plan: StepPlan, state: StepState, player: Player, way: Route, group: dist.ProcessGroup) -> Reduced:
    """One rank a process, added by the backend's own all-reduce; nothing waits."""
    world, wire, ops = plan.world_size, getattr(torch, plan.reduce_dtype), scaling_of(plan, way.phase)
    total = flat_buffer(state, "total", way.placed.numel, state.dtype)
    own_norms = torch.zeros(world, device=state.device)

    def play() -> list[Tensor]:
        (rank,) = player.hosted
        flat = player.rank_gradient(rank)
        own_norms[rank] = torch.linalg.vector_norm(flat.float())
        return [to_wire(flat[a:b], ops, world, wire) for a, b in way.placed.buckets]

    for piece, (a, b) in zip(agreed(group, play, state.device), way.placed.buckets):
        dist.all_reduce(piece, group=group)
        total[a:b] = from_wire(piece, ops, world, wire, state.dtype)
    return Reduced(total, player.evaluations, 0, tuple(add_everywhere(own_norms, group)))


def is_native(order: Summed, world_size: int, group: dist.ProcessGroup) -> bool:
    """Whether the backend's own all-reduce adds in this order: gloo's ring with one rank a process."""
    ring = isinstance(order, GlooRing) and order.max_segment_bytes == 1 << 20 and order.sum_dtype == "wire"
    return ring and dist.get_world_size(group) == world_size and dist.get_backend(group) == "gloo"


def _exact(
    plan: StepPlan, state: StepState, player: Player, placed: Layout, order: Exact, group: dist.ProcessGroup | None
) -> Reduced:
    whole = flat_buffer(state, "integers", placed.numel, torch.int64).zero_()
    total = ExactSum(whole, order.exponent, plan.world_size * plan.grad_accum_steps)

    def play() -> None:
        for rank in player.hosted:
            for flat in player.micro_gradients(rank):
                total.add(flat)

    agreed(group, play, state.device)
    add_exact(total, group)
    value = total.value(player.weights.final_divisor, state.dtype)
    return Reduced(value, player.evaluations, 0)
