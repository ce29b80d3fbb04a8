"""A plan from a live Hugging Face `Trainer`: its arguments, model, optimizer and scheduler.

What is implied by the Trainer's code was looked at in transformers 5.24 with accelerate 1.15; under another version it is marked
as assumed. `pretrace check-loss --hf` measures the denominator of the installed one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from pretrace.errors import PretraceError
from pretrace.step.importers import TORCH_CLIP, Draft, one_rank
from pretrace.step.importers_optimizer import base_lr
from pretrace.step.importers_torch import common, pin, reduce_by_ddp
from pretrace.step.plan import StepPlan

LOOKED_AT = "5.24"


def from_hf(trainer: Any, declared: Mapping[str, Any]) -> StepPlan:
    """The plan of `trainer.train()`.

    Parameters
    ----------
    trainer : a `transformers.Trainer`; optimizer and scheduler are made if they are not there yet, for
        `args.max_steps` updates.
    declared : values under dotted keys that replace what is read or assumed.

    Raises
    ------
    PretraceError
        If the Trainer does what plans do not have (DeepSpeed, FSDP, several GPUs in one process, label smoothing).
    """
    import transformers

    args = trainer.args
    _refuse(trainer)
    if trainer.optimizer is None or trainer.lr_scheduler is None:
        if args.max_steps <= 0:  # made for a guess, they would stay in the Trainer and change its training
            raise PretraceError(
                "the number of updates is not set, so the Trainer has no learning rates yet",
                "TrainingArguments.max_steps",
                "set max_steps, or call create_optimizer_and_scheduler first",
            )
        trainer.create_optimizer_and_scheduler(num_training_steps=args.max_steps)
    draft = Draft(f"from_hf (transformers {transformers.__version__})")
    wrapped = getattr(trainer, "model_wrapped", trainer.model)
    common(draft, trainer.model, trainer.optimizer, world_size=args.world_size)
    draft.read("grad_accum_steps", args.gradient_accumulation_steps, "TrainingArguments.gradient_accumulation_steps")
    draft.read("micro_batch", args.per_device_train_batch_size, "TrainingArguments.per_device_train_batch_size")
    _loss(draft, trainer)
    clip = {"max_norm": args.max_grad_norm, "scope": "global", **TORCH_CLIP} if args.max_grad_norm else None
    draft.read("clip", clip, "TrainingArguments.max_grad_norm")
    _schedule(draft, trainer.lr_scheduler, trainer.optimizer)
    _precision(draft, args)
    if args.world_size == 1:
        one_rank(draft, "one process")
    elif isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
        reduce_by_ddp(draft, wrapped, torch.distributed.get_backend(wrapped.process_group))
    else:
        _ddp_to_come(draft, trainer)
    implied = ("loss", "clip")
    if not transformers.__version__.startswith(LOOKED_AT + "."):
        draft.mark_assumed(implied, f"looked at in transformers {LOOKED_AT}")
    if args.world_size > 1:
        pin(draft, ("reduction.buckets", "reduction.scaling", "reduction.scaling_first"))
    return draft.plan(declared)


def _refuse(trainer: Any) -> None:
    args = trainer.args
    odd = {
        "deepspeed": bool(args.deepspeed), "fsdp": bool(args.fsdp), "n_gpu > 1 in one process": args.n_gpu > 1,
        "label_smoothing_factor": bool(args.label_smoothing_factor), "auto_find_batch_size": args.auto_find_batch_size,
        "neftune_noise_alpha": bool(args.neftune_noise_alpha), "compute_loss_func": trainer.compute_loss_func is not None,
    }  # fmt: skip
    for name, used in odd.items():
        if used:
            raise PretraceError(f"the Trainer uses {name}, which from_hf does not read", f"TrainingArguments.{name}",
                                "switch it off, or write the plan by hand")  # fmt: skip


def _loss(draft: Draft, trainer: Any) -> None:
    args = trainer.args
    counts = bool(trainer.model_accepts_loss_kwargs)
    if counts and (args.average_tokens_across_devices or args.world_size == 1):
        denominator, why = "global_tokens", "num_items_in_batch, gathered over processes"
    elif counts:
        denominator, why = "rank_step_tokens", "num_items_in_batch of each process"
    else:
        denominator, why = "micro_mean", "the model takes no num_items_in_batch: its mean, divided by the micro-steps"
    # 5.x counts labels[..., 1:]; releases before counted the first label too.
    count = (
        "after_shift" if "labels_for_count" in inspect.getsource(trainer._get_num_items_in_batch) else "before_shift"
    )
    draft.read("loss", {
        "denominator": denominator, "count": count, "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0,
        "z_loss_on": "counted",
    }, f"Trainer: {why}")  # fmt: skip


def _schedule(draft: Draft, scheduler: Any, optimizer: Any) -> None:
    peak = max(base_lr(group) for group in getattr(optimizer, "optimizer", optimizer).param_groups)
    inner = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
    rule = (getattr(inner, "lr_lambdas", None) or [None])[0]
    name = rule.func.__name__ if isinstance(rule, partial) else getattr(rule, "__name__", "")
    given = dict(rule.keywords) if isinstance(rule, partial) else {}
    found = _known_schedule(name, given, peak)
    if found is None:
        draft.assume("schedule", {"kind": "constant", "peak": peak, "warmup_steps": 0}, f"scheduler {name} is unknown")
    else:
        draft.read("schedule", found, f"transformers.optimization.{name}")


def _known_schedule(name: str, given: Mapping[str, Any], peak: float) -> dict[str, Any] | None:
    warmup = int(given.get("num_warmup_steps", 0))
    total = int(given.get("num_training_steps", 1))
    match name:
        case "_get_constant_lambda" | "_get_constant_schedule_with_warmup_lr_lambda":
            return {"kind": "constant", "peak": peak, "warmup_steps": warmup}
        case "_get_linear_schedule_with_warmup_lr_lambda":
            return {"kind": "hf_linear", "peak": peak, "warmup_steps": warmup, "total_steps": total}
        case "_get_cosine_schedule_with_warmup_lr_lambda":
            floor = float(given.get("min_lr_rate", 0.0))
            return {"kind": "hf_cosine", "peak": peak, "warmup_steps": warmup, "total_steps": total,
                    "cycles": float(given["num_cycles"]), "floor_ratio": floor}  # fmt: skip
        case "_get_wsd_scheduler_lambda":
            return {"kind": "wsd", "peak": peak, "floor_ratio": float(given["min_lr_ratio"]), "warmup_steps": warmup,
                    "stable_steps": int(given["num_stable_steps"]), "decay_steps": int(given["num_decay_steps"]),
                    "warmup_shape": given["warmup_type"], "decay_shape": given["decay_type"],
                    "cycles": float(given["num_cycles"])}  # fmt: skip
    return None


def _precision(draft: Draft, args: Any) -> None:
    if args.bf16:
        draft.read("kernels.compute_dtype", "bfloat16", "TrainingArguments.bf16: autocast")
        draft.read("kernels.mixed", "autocast", "TrainingArguments.bf16: autocast")
    if args.fp16:
        draft.read("kernels.compute_dtype", "float16", "TrainingArguments.fp16: autocast")
        draft.read("loss_scale", {
            "kind": "dynamic", "rule": "torch", "initial": 65536.0, "growth": 2.0, "backoff": 0.5, "window": 2000,
            "hysteresis": 1, "consecutive_hysteresis": False, "minimum": 1e-30,
        }, "accelerate: torch.amp.GradScaler's defaults")  # fmt: skip
    draft.read("kernels.compile", bool(args.torch_compile), "TrainingArguments.torch_compile")


def _ddp_to_come(draft: Draft, trainer: Any) -> None:
    """DDP wraps the model when training starts; a wrapper like it shows what it will do."""
    ddp = torch.nn.parallel.DistributedDataParallel(trainer.model, **_ddp_arguments(trainer.args))
    reduce_by_ddp(draft, ddp, torch.distributed.get_backend(ddp.process_group))


def _ddp_arguments(args: Any) -> dict[str, Any]:
    given = {"bucket_cap_mb": args.ddp_bucket_cap_mb, "broadcast_buffers": args.ddp_broadcast_buffers}
    return {key: value for key, value in given.items() if value is not None}
