"""What an engine of torch does otherwise than a plan: found whole before anything is wrapped, each with what would fit.

An engine cannot be told how to add or divide; the plan must say what the engine does anyway. So all that does not fit is named at
once, with the values that make the plan this engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pretrace.digest import canonical_json
from pretrace.errors import PretraceError
from pretrace.step.buckets import Ddp, Fsdp2
from pretrace.step.orders import Exact, GlooRing, Recorded
from pretrace.step.plan import StepPlan
from pretrace.step.reduction_spec import ScaleOp

MUL, DIV = ("before_cast", "mul", "world_size"), ("before_cast", "div", "world_size")
HOOK = ("wire_pre", "div", "world_size")
GLOO_MEAN, NCCL_MEAN = ("wire_post", "div", "world_size"), ("wire_pre", "mul_rounded", "world_size")


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing that the engine does otherwise."""

    key: str  # of the plan
    does: str  # what the engine does
    fits: dict[str, Any]  # key of the plan -> value under which the plan is the engine's; empty: no value is


def refuse_misfits(name: str, misfits: Iterator[Misfit]) -> None:
    """Raises one error that names everything.

    Raises
    ------
    PretraceError
        If there is a misfit.
    """
    found = tuple(misfits)
    if not found:
        return
    values = {key: value for misfit in found for key, value in misfit.fits.items()}
    said = " ".join(f"--set 'step.{key}={canonical_json(value)}'" for key, value in values.items())
    hopeless = "" if all(m.fits for m in found) else "this plan cannot be made this engine's; "
    raise PretraceError(
        f"{name} does otherwise than this plan: {'; '.join(m.does for m in found)}",
        ", ".join(dict.fromkeys(f"step.{m.key}" for m in found)),
        f"{hopeless}take the plan's own executor (--engine plan)"
        + (f", or declare what {name} does: {said}" if said else ""),
    )


def for_all(plan: StepPlan, *, processes: int, routed: bool, backend: str) -> Iterator[Misfit]:
    """What no engine does. `routed`: the model has experts."""
    if processes != plan.world_size:
        yield Misfit("world_size", f"{processes} processes cannot be {plan.world_size} ranks one to one "
                     f"(start {plan.world_size})", {})  # fmt: skip
    if plan.loss.divide != "loss":
        yield Misfit("loss.divide", "it divides in the loss", {"loss.divide": "loss"})
    if plan.kernels.loss_rows is not None:
        yield Misfit("kernels.loss_rows", "it takes the loss of whole micro-batches", {"kernels.loss_rows": None})
    if routed:
        yield Misfit("loss", "it knows no router of experts", {})
    order = plan.reduction.order
    if isinstance(order, Exact) or order.sum_dtype != "wire":
        yield Misfit("reduction.order", "its collective adds on the wire, in the wire's dtype", _ring())
    elif backend == "gloo" and plan.world_size > 2 and not isinstance(order, (GlooRing, Recorded)):
        yield Misfit("reduction.order", "gloo adds along its ring", _ring())


def for_ddp(plan: StepPlan) -> Iterator[Misfit]:
    """What DDP and ZeRO-1 do otherwise."""
    buckets, kernels = plan.reduction.buckets, plan.kernels
    if plan.reduction.collective != "all_reduce":
        yield Misfit("reduction.collective", "DDP reduces by all_reduce", {"reduction.collective": "all_reduce"})
    fits = {"reduction.buckets": {"kind": "ddp", "cap_mb": 25, "first_cap_mb": 1, "restart": "anew"}}
    if not isinstance(buckets, Ddp):
        yield Misfit("reduction.buckets", "DDP makes DDP's buckets", fits)
    elif (buckets.first_cap_mb, buckets.cap_mb) != (1, 25) and buckets.first_cap_mb != buckets.cap_mb:
        yield Misfit("reduction.buckets", "DDP knows one bucket cap (1 with 25, or the same for both)", fits)
    casts = kernels.mixed == "cast" and kernels.compute_dtype != kernels.param_dtype
    if plan.accum_dtype != kernels.param_dtype or casts:
        yield Misfit("accum_dtype", "DDP accumulates in the parameters' dtype, under autocast",
                     {"accum_dtype": kernels.param_dtype, "kernels.mixed": "autocast"})  # fmt: skip
    narrower = plan.reduce_dtype != kernels.param_dtype
    first, later = words(plan.reduction.scaling_first), words(plan.reduction.scaling)
    divisions = (((HOOK,), (HOOK,)),) if narrower else (((MUL,), (MUL,)), ((MUL,), (DIV,)))
    if (first, later) not in divisions:
        yield Misfit("reduction.scaling", "DDP does not divide like that", _scaling(HOOK if narrower else MUL))
    if plan.clip is not None and plan.clip.scope != "global":
        yield Misfit("clip.scope", "DDP clips by the global norm", {"clip.scope": "global", "clip.norm": "tensors"})


def for_fsdp2(plan: StepPlan, backend: str) -> Iterator[Misfit]:
    """What FSDP2 does otherwise."""
    buckets, kernels = plan.reduction.buckets, plan.kernels
    if plan.reduction.collective != "reduce_scatter":
        yield Misfit(
            "reduction.collective", "FSDP2 reduces by reduce_scatter", {"reduction.collective": "reduce_scatter"}
        )
    if not isinstance(buckets, Fsdp2):
        yield Misfit("reduction.buckets", "FSDP2 reduces one bucket a unit",
                     {"reduction.buckets": {"kind": "fsdp2", "units": ["blocks.*"]}})  # fmt: skip
    if kernels.compute_dtype != kernels.param_dtype and kernels.mixed != "cast":
        yield Misfit("kernels.mixed", "FSDP2 casts parameters", {"kernels.mixed": "cast"})
    if kernels.compile:
        yield Misfit("kernels.compile", "compiled FSDP2 is not supported", {"kernels.compile": False})
    if plan.accum_dtype != plan.reduce_dtype and plan.grad_accum_steps > 1:
        yield Misfit("accum_dtype", "FSDP2 accumulates in the wire's dtype", {"accum_dtype": plan.reduce_dtype})
    first, later = words(plan.reduction.scaling_first), words(plan.reduction.scaling)
    if first != later or later not in ((GLOO_MEAN,), (NCCL_MEAN,)):
        mean = NCCL_MEAN if backend == "nccl" else GLOO_MEAN
        yield Misfit("reduction.scaling", "FSDP2 averages as its backend does", _scaling(mean))
    if plan.clip is not None and plan.clip.scope != "shards":
        yield Misfit(
            "clip.scope", "FSDP2 takes the norm shard by shard", {"clip.scope": "shards", "clip.norm": "tensors"}
        )


def words(ops: tuple[ScaleOp, ...]) -> tuple[tuple[str, str, object], ...]:
    """Divisions as plain words, to compare them."""
    return tuple((op.where, op.op, op.by) for op in ops)


def _scaling(op: tuple[str, str, str]) -> dict[str, Any]:
    ops = [dict(zip(("where", "op", "by"), op))]
    return {"reduction.scaling": ops, "reduction.scaling_first": ops}


def _ring() -> dict[str, Any]:
    return {"reduction.order": {"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}}
