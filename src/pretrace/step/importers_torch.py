"""Plans from live torch objects: an optimizer, DistributedDataParallel, FSDP1 and FSDP2.

What is read from private attributes was looked at in torch 2.13 and is marked as assumed under any other version. What a wrapper
cannot know (the loss, gas, clipping, the schedule) is assumed until the caller declares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pretrace.errors import PretraceError
from pretrace.step.importers import (
    AVG_NCCL,
    DIV_BEFORE,
    DIV_WIRE_POST,
    DIV_WIRE_PRE,
    MUL_BEFORE,
    ROOT_SPLIT,
    Draft,
    one_rank,
    order_of_backend,
    plain_loss,
)
from pretrace.step.importers_optimizer import base_lr, name_of, named_parameters, optimizer_of
from pretrace.step.plan import StepPlan

LOOKED_AT = "2.13"


def common(
    draft: Draft, model: nn.Module, optimizer: Optimizer, *, world_size: int, scaler: torch.amp.GradScaler | None = None
) -> None:
    """What any torch training loop shows: parameters, optimizer, thread settings; and what it never shows."""
    draft.read("world_size", world_size, "size of the process group")
    draft.assume("grad_accum_steps", 1, "the training loop decides")
    draft.assume("micro_batch", 1, "the training loop decides")
    plain_loss(draft, "the training loop decides")
    draft.assume("clip", None, "the training loop decides")
    draft.read("optimizer", optimizer_of(optimizer, model), type(optimizer).__name__)
    top = max(base_lr(group) for group in getattr(optimizer, "optimizer", optimizer).param_groups)
    draft.assume("schedule", {"kind": "constant", "peak": top, "warmup_steps": 0}, "the rate of the optimizer now")
    loss_scale(draft, scaler)
    dtype = str(next(iter(named_parameters(model).values())).dtype).removeprefix("torch.")
    draft.read("accum_dtype", dtype, "gradients are accumulated in the dtype of the parameters")
    draft.read("reduce_dtype", dtype, "gradients are reduced in the dtype of the parameters")
    draft.read("kernels.param_dtype", dtype, "dtype of the parameters")
    draft.assume("kernels.compute_dtype", dtype, "autocast is not visible from outside")
    draft.assume("kernels.mixed", "autocast", "not visible from outside")
    draft.assume("kernels.attention", "any", "not visible from outside")
    draft.read("kernels.threads", torch.get_num_threads(), "torch.get_num_threads()")
    draft.read("kernels.compile", any("_orig_mod" in n for n, _ in model.named_modules()), "torch.compile's wrapper")
    deterministic = torch.are_deterministic_algorithms_enabled()
    draft.read("kernels.deterministic", deterministic, "torch.are_deterministic_algorithms_enabled()")


def loss_scale(draft: Draft, scaler: torch.amp.GradScaler | None) -> None:
    """The loss scale of a `GradScaler`; none without one."""
    if scaler is None or not scaler.is_enabled():
        draft.assume("loss_scale", {"kind": "none"}, "no GradScaler was handed over")
        return
    draft.read("loss_scale", {
        "kind": "dynamic", "rule": "torch", "initial": scaler.get_scale(), "growth": scaler.get_growth_factor(),
        "backoff": scaler.get_backoff_factor(), "window": scaler.get_growth_interval(), "hysteresis": 1,
        "consecutive_hysteresis": False, "minimum": 1e-30,
    }, "GradScaler")  # fmt: skip


def from_ddp(
    ddp: nn.parallel.DistributedDataParallel,
    optimizer: Optimizer,
    declared: Mapping[str, Any],
    *,
    scaler: torch.amp.GradScaler | None = None,
) -> StepPlan:
    """The plan of a loop around `DistributedDataParallel`.

    Parameters
    ----------
    declared : what DDP cannot know, under dotted keys: `grad_accum_steps`, `micro_batch`, `loss`, `clip`, `schedule`, ...
    """
    draft = Draft("from_ddp")
    group = ddp.process_group
    common(draft, ddp, optimizer, world_size=group.size(), scaler=scaler)
    reduce_by_ddp(draft, ddp, torch.distributed.get_backend(group))
    pin(draft, ("reduction.buckets", "reduction.scaling", "reduction.scaling_first"))
    return draft.plan(declared)


def reduce_by_ddp(draft: Draft, ddp: nn.parallel.DistributedDataParallel, backend: str) -> None:
    """The reduction of a live DDP: buckets, divisions, and what its communication hook casts to."""
    cap = ddp.bucket_bytes_cap / 2**20
    first = 1.0 if ddp.bucket_bytes_cap_default else cap  # 1 MiB is reducer.cpp's first bucket
    order_of_backend(draft, backend)
    draft.read("reduction.collective", "all_reduce", "DDP")
    buckets = {"kind": "ddp", "cap_mb": cap, "first_cap_mb": first, "restart": "anew"}
    draft.read("reduction.buckets", buckets, "DDP.bucket_bytes_cap")
    hooks = [getattr(hook, "__name__", str(hook)) for hook, _ in getattr(ddp, "_comm_hooks", [])]
    if not hooks:
        later = DIV_BEFORE if ddp.gradient_as_bucket_view else MUL_BEFORE
        draft.read("reduction.scaling", [later], "reducer.cpp: gradients that are views are divided, others multiplied")
        draft.read("reduction.scaling_first", [MUL_BEFORE], "reducer.cpp: copies into the bucket are multiplied by 1/W")
    elif hooks[0] in ("bf16_compress_hook", "fp16_compress_hook"):
        draft.read("reduce_dtype", "bfloat16" if "bf16" in hooks[0] else "float16", f"hook {hooks[0]}")
        for key in ("reduction.scaling", "reduction.scaling_first"):
            draft.read(key, [DIV_WIRE_PRE], f"hook {hooks[0]}: casts, then divides")
    elif hooks[0] == "allreduce_hook":
        for key in ("reduction.scaling", "reduction.scaling_first"):
            draft.read(key, [DIV_BEFORE], "hook allreduce_hook: divides, then all-reduces")
    else:
        for key in ("reduction.scaling", "reduction.scaling_first"):
            draft.assume(key, [MUL_BEFORE], f"hook {hooks[0]} is unknown")


def pin(draft: Draft, keys: tuple[str, ...]) -> None:
    """Keeps what is implied by torch's code as read only for the version that we looked at."""
    if not torch.__version__.startswith(LOOKED_AT + "."):
        draft.mark_assumed(keys, f"looked at in torch {LOOKED_AT}, this is {torch.__version__}")


def from_fsdp2(model: nn.Module, optimizer: Optimizer, declared: Mapping[str, Any]) -> StepPlan:
    """The plan of a loop around a model wrapped by `fully_shard`: one unit a wrapped module.

    Raises
    ------
    PretraceError
        If the model is not wrapped, or its units differ in their precision.
    """
    units = _fsdp2_units(model)
    draft = Draft("from_fsdp2")
    root = units[""]
    size, backend = root.mesh_info.shard_mesh_size, torch.distributed.get_backend(root.mesh_info.shard_process_group)
    common(draft, model, optimizer, world_size=size)
    policy = _same_policy(units)
    stored = str(next(iter(named_parameters(model).values())).dtype).removeprefix("torch.")
    compute = _dtype_word(policy.param_dtype, stored)
    wire = _dtype_word(policy.reduce_dtype, compute)
    draft.read("kernels.compute_dtype", compute, "MixedPrecisionPolicy.param_dtype")
    draft.read("kernels.mixed", "cast", "FSDP casts parameters before the forward")
    draft.read("reduce_dtype", wire, "MixedPrecisionPolicy.reduce_dtype")
    draft.read("accum_dtype", wire, "FSDP2 accumulates unsynchronised micro-steps in the reduce dtype")
    gloo = order_of_backend(draft, backend)
    draft.read("reduction.collective", "reduce_scatter", "fully_shard")
    names = [name for name in units if name]
    draft.read("reduction.buckets", {"kind": "fsdp2", "units": names}, "modules wrapped by fully_shard")
    if wire == "float16":
        scaling, why = ROOT_SPLIT, "fp16: divided by a power of two near sqrt(W) before, by the rest after"
    else:
        scaling, why = [DIV_WIRE_POST if gloo else AVG_NCCL], "ReduceOp.AVG: gloo divides after, NCCL multiplies before"
    for key in ("reduction.scaling", "reduction.scaling_first"):
        draft.read(key, scaling, why)
    pin(draft, ("reduction.buckets", "reduction.scaling", "reduction.scaling_first", "accum_dtype"))
    return draft.plan(declared)


def _fsdp2_units(model: nn.Module) -> dict[str, Any]:
    """Name of each wrapped module -> its parameter group; the root's name is empty."""
    found = {}
    for name, module in model.named_modules():
        state = getattr(module, "_get_fsdp_state", None)
        group = state()._fsdp_param_group if state else None
        if group is not None:
            found[name_of(name)] = group
    if "" not in found:
        raise PretraceError("the model is not wrapped by fully_shard, or its root holds no parameters", "from_fsdp2",
                            "hand over the module that fully_shard was called on last")  # fmt: skip
    return found


def _same_policy(units: Mapping[str, Any]) -> Any:
    policies = {(u.mp_policy.param_dtype, u.mp_policy.reduce_dtype) for u in units.values()}
    if len(policies) > 1:
        raise PretraceError(
            "the units differ in their precision", "MixedPrecisionPolicy", "plans have one for all units"
        )
    return next(iter(units.values())).mp_policy


def from_fsdp1(model: nn.Module, optimizer: Optimizer, declared: Mapping[str, Any]) -> StepPlan:
    """The plan of a loop around `FullyShardedDataParallel`, FULL_SHARD, SHARD_GRAD_OP or NO_SHARD.

    Raises
    ------
    PretraceError
        If the model is not wrapped, or shards in another way.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1
    from torch.distributed.fsdp import ShardingStrategy

    if not isinstance(model, Fsdp1):
        raise PretraceError("the model is no FullyShardedDataParallel", "from_fsdp1", "hand over the wrapped root")
    strategy, precision = model.sharding_strategy, model.mixed_precision
    if strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        raise PretraceError(
            f"{strategy.name} reduces twice, plans reduce once", "from_fsdp1", "declare it as two plans"
        )
    draft = Draft("from_fsdp1")
    common(draft, model, optimizer, world_size=model.world_size)
    sharded = strategy is not ShardingStrategy.NO_SHARD
    stored = str(next(iter(named_parameters(model).values())).dtype).removeprefix("torch.")
    compute = _dtype_word(precision.param_dtype, stored)
    draft.read("kernels.compute_dtype", compute, "MixedPrecision.param_dtype")
    draft.read("kernels.mixed", "cast", "FSDP casts parameters before the forward")
    draft.read("reduce_dtype", _dtype_word(precision.reduce_dtype, compute), "MixedPrecision.reduce_dtype")
    draft.read("accum_dtype", compute, "FSDP1 accumulates in the dtype of the gradients")
    order_of_backend(draft, torch.distributed.get_backend(model.process_group))
    draft.read("reduction.collective", "reduce_scatter" if sharded else "all_reduce", strategy.name)
    units = [name_of(n) for n, m in model.named_modules() if isinstance(m, Fsdp1) and n]
    buckets = {"kind": "fsdp1", "units": units, "sharded": sharded, "use_orig_params": bool(model._use_orig_params)}
    draft.read("reduction.buckets", buckets, "wrapped modules")
    for key in ("reduction.scaling", "reduction.scaling_first"):
        draft.read(key, ROOT_SPLIT, "FSDP1 divides by a power of two near sqrt(W) before, by the rest after")
    pin(draft, ("reduction.buckets", "reduction.scaling", "reduction.scaling_first", "accum_dtype"))
    return draft.plan(declared)


def _dtype_word(dtype: torch.dtype | None, otherwise: str) -> str:
    return otherwise if dtype is None else str(dtype).removeprefix("torch.")


def from_loop(
    model: nn.Module,
    optimizer: Optimizer,
    declared: Mapping[str, Any],
    *,
    scaler: torch.amp.GradScaler | None = None,
) -> StepPlan:
    """The plan of a loop on one device: no ranks to reduce over."""
    draft = Draft("from_loop")
    common(draft, model, optimizer, world_size=1, scaler=scaler)
    one_rank(draft, "one process")
    return draft.plan(declared)
