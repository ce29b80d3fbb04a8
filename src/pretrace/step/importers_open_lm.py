"""A plan from open_lm's arguments. No torch.

    fsdp                    FullyShardedDataParallel around every block, FULL_SHARD
    fsdp_amp                parameters cast to bf16, gradients reduced in fp32
    fsdp_pure_bf16          parameters cast to bf16, gradients reduced in bf16
    fsdp_limit_all_gathers  throttles prefetching: it moves memory and time, no number; it is noted, not used

Looked at: mlfoundations/open_lm main (main.py, train.py, losses.py, scheduler.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pretrace.errors import PretraceError
from pretrace.step.importers import MUL_BEFORE, ROOT_SPLIT, TORCH_CLIP, Draft, one_rank
from pretrace.step.plan import StepPlan

_REQUIRED = ("world_size", "per_gpu_batch_size", "lr", "warmup", "total_steps")


def from_open_lm(args: Mapping[str, Any], declared: Mapping[str, Any]) -> StepPlan:
    """The plan of an open_lm run from its arguments by name (`vars(args)`, plus `total_steps`).

    Raises
    ------
    PretraceError
        If an argument is missing that decides the arithmetic, or two exclude each other.
    """
    for key in _REQUIRED:
        if args.get(key) is None:
            raise PretraceError(f"the arguments have no {key}", "from_open_lm", "add it")
    if args.get("fsdp_amp") and args.get("fsdp_pure_bf16"):
        raise PretraceError("fsdp_amp and fsdp_pure_bf16 exclude each other", "from_open_lm", "say which one ran")
    draft = Draft("from_open_lm")
    gas, per_gpu = int(args.get("accum_freq", 1)), int(args["per_gpu_batch_size"])
    if per_gpu % gas:
        raise PretraceError(
            f"per_gpu_batch_size {per_gpu} is no multiple of accum_freq {gas}", "from_open_lm", "correct one"
        )
    draft.read("world_size", int(args["world_size"]), "world_size")
    draft.read("grad_accum_steps", gas, "accum_freq")
    draft.read("micro_batch", per_gpu // gas, "per_gpu_batch_size / accum_freq")
    _loss(draft, args)
    _precision(draft, args)
    _reduction(draft, args)
    limit = args.get("grad_clip_norm")
    scope = "shards" if args.get("fsdp") else "global"
    clip = {"max_norm": float(limit), "scope": scope, **TORCH_CLIP} if limit else None
    draft.read("clip", clip, "grad_clip_norm")
    _optimizer(draft, args)
    _schedule(draft, args)
    return draft.plan(declared)


def _loss(draft: Draft, args: Mapping[str, Any]) -> None:
    draft.read("loss", {
        "denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "as_computed",
        "z_loss": 0.0, "z_loss_on": "counted",
    }, "mean over a micro-batch, weighted by its share of the rank's batch")  # fmt: skip
    coefficient = float(args.get("z_loss_coefficient", 0.0) or 0.0)
    if coefficient:
        # Theirs is coefficient * (mean of log-sum-exp)^2, ours the mean of the squares.
        draft.assume(
            "loss.z_loss", coefficient, "open_lm squares the mean of log-sum-exp, plans take the mean of squares"
        )


def _precision(draft: Draft, args: Mapping[str, Any]) -> None:
    amp, pure = bool(args.get("fsdp_amp")), bool(args.get("fsdp_pure_bf16"))
    precision = str(args.get("precision", "fp32"))
    low = amp or pure or "bf16" in precision or "bfloat16" in precision
    draft.read("kernels.param_dtype", "float32", "FSDP keeps fp32 shards; the optimizer updates them")
    draft.read("kernels.compute_dtype", "bfloat16" if low else "float32", "fsdp_amp / fsdp_pure_bf16 / precision")
    draft.read("kernels.mixed", "cast" if amp or pure else "autocast", "MixedPrecision casts, amp autocasts")
    draft.read("reduce_dtype", "bfloat16" if pure else "float32", "MixedPrecision.reduce_dtype")
    draft.read("accum_dtype", "bfloat16" if amp or pure else "float32", "dtype of the gradients")
    draft.read("loss_scale", {"kind": "none"}, "no GradScaler in bf16")
    limits = "fsdp_limit_all_gathers moves time and memory, no number"
    draft.assume("kernels.attention", "any", f"not in the arguments ({limits})")
    draft.assume("kernels.threads", None, "not in the arguments")
    draft.read("kernels.compile", bool(args.get("torchcompile", False)), "torchcompile")
    draft.assume("kernels.deterministic", False, "not in the arguments")


def _reduction(draft: Draft, args: Mapping[str, Any]) -> None:
    if int(args["world_size"]) == 1:
        one_rank(draft, "one process")
        return
    why = "NCCL's order was not recorded; use `pretrace probe`"
    draft.assume("reduction.order", {"kind": "direct", "sum_dtype": "wire"}, why)
    if not args.get("fsdp"):
        draft.read("reduction.collective", "all_reduce", "DDP")
        draft.read("reduction.buckets", {"kind": "ddp", "cap_mb": 25.0, "first_cap_mb": 1.0, "restart": "anew"}, "DDP")
        for key in ("reduction.scaling", "reduction.scaling_first"):
            draft.read(key, [MUL_BEFORE], "DDP multiplies by 1/W")
        return
    draft.read("reduction.collective", "reduce_scatter", "fsdp: FULL_SHARD")
    draft.read("reduction.buckets", {
        "kind": "fsdp1", "units": ["blocks.*"], "sharded": True,
        "use_orig_params": bool(args.get("fsdp_use_orig_params", False)),
    }, "one unit a block")  # fmt: skip
    for key in ("reduction.scaling", "reduction.scaling_first"):
        draft.read(key, ROOT_SPLIT, "FSDP1 divides by a power of two near sqrt(W) before, by the rest after")


def _optimizer(draft: Draft, args: Mapping[str, Any]) -> None:
    draft.read("optimizer", {
        "kind": "adamw", "kernel": "torch_foreach", "betas": [float(args.get("beta1", 0.9)), float(args.get("beta2", 0.95))],
        "eps": float(args.get("eps", 1e-8)), "eps_place": "corrected", "bias_correction": True, "decay_place": "before",
        "groups": [{"params": ["*"], "ndim": "any", "weight_decay": float(args.get("wd", 0.2)), "lr_scale": 1.0}],
    }, "torch.optim.AdamW over all parameters")  # fmt: skip


def _schedule(draft: Draft, args: Mapping[str, Any]) -> None:
    if args.get("lr_scheduler", "cosine") != "cosine":
        raise PretraceError(f"lr_scheduler {args['lr_scheduler']} is not read", "from_open_lm", "declare `schedule`")
    draft.read("schedule", {
        "kind": "open_lm", "peak": float(args["lr"]), "cooldown": float(args.get("lr_cooldown_end", 0.0)),
        "floor": float(args.get("force_min_lr", 0.0)), "warmup_steps": int(args["warmup"]),
        "total_steps": int(args["total_steps"]),
    }, "cosine_lr: warm-up from 1/w, cosine towards lr_cooldown_end, force_min_lr as a clamp")  # fmt: skip
