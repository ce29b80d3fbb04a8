"""A plan from the values of a GPT-NeoX configuration, for v1.0 (which trained Pythia) and for later releases. No torch.

The same values mean other arithmetic in other releases: v1.0's cosine goes to zero over the whole run, clamped at the floor;
its first update has rate 0, `pipe-parallel-size: 1` selects the pipeline engine (which sums unscaled fp16 gradients and
multiplies by 1/W afterwards), and 0 selects a ZeRO-1 path that clips by the norm of local gradients. Looked at: v1.0 with
DeeperSpeed 0.3.15; learning rates of later releases from gpt-neox#1008, #1011 and #1379.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pretrace.errors import PretraceError
from pretrace.step.importers import MUL_WIRE_POST, Draft
from pretrace.step.plan import StepPlan

Version = Literal["v1.0", "v2.0", "head"]
_REQUIRED = ("train_micro_batch_size_per_gpu", "train_iters", "optimizer", "lr_decay_style")


def from_neox(values: Mapping[str, Any], world_size: int, declared: Mapping[str, Any], *, version: Version) -> StepPlan:
    """The plan of a NeoX run.

    Parameters
    ----------
    values : the configuration, keys as in its files (`train-iters` or `train_iters`).
    world_size : data-parallel ranks: GPUs over model- and pipeline-parallel sizes.

    Raises
    ------
    PretraceError
        If a value is missing that decides the arithmetic, or the optimizer is not Adam.
    """
    v = {key.replace("-", "_"): value for key, value in values.items()}
    for key in _REQUIRED:
        if key not in v:
            raise PretraceError(f"the configuration has no {key.replace('_', '-')}", "from_neox", "add it")
    draft = Draft(f"from_neox {version}")
    draft.read("world_size", world_size, "argument world_size")
    draft.read("grad_accum_steps", _gas(v, world_size), "gradient_accumulation_steps")
    draft.read("micro_batch", int(v["train_micro_batch_size_per_gpu"]), "train_micro_batch_size_per_gpu")
    draft.read("loss", {
        "denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0,
        "z_loss_on": "counted",
    }, "cross entropy over unmasked tokens of a micro-batch, divided by gas in fp32")  # fmt: skip
    pipeline = _is_pipeline(int(v.get("pipe_parallel_size", 0)), version)
    _precision(draft, v)
    _reduction(draft, v, pipeline)
    _clip(draft, v, pipeline, version)
    _optimizer(draft, v)
    _schedule(draft, v, version)
    if version != "v1.0":
        draft.mark_assumed(("reduction.buckets", "reduction.scaling", "reduction.scaling_first"), "looked at in v1.0")
    return draft.plan(declared)


def _gas(v: Mapping[str, Any], world_size: int) -> int:
    gas = v.get("gradient_accumulation_steps")
    if gas is not None:
        return int(gas)
    batch, micro = v.get("train_batch_size"), int(v["train_micro_batch_size_per_gpu"])
    if batch is None:
        return 1
    if int(batch) % (micro * world_size):
        raise PretraceError(f"train_batch_size {batch} is no multiple of {micro} x {world_size} ranks", "from_neox",
                            "correct the number of ranks")  # fmt: skip
    return int(batch) // (micro * world_size)


def _is_pipeline(size: int, version: Version) -> bool:
    # v1.0 tests >= 1, v2.0 changed it to >= 2, later releases are back at >= 1.
    return size >= (2 if version == "v2.0" else 1)


def _precision(draft: Draft, v: Mapping[str, Any]) -> None:
    fp16 = dict(v.get("fp16") or {})
    on = bool(fp16.get("enabled", fp16.get("fp16", False)))
    dtype = "float16" if on else "bfloat16" if v.get("precision") == "bfloat16" else "float32"
    for key in ("accum_dtype", "reduce_dtype", "kernels.compute_dtype"):
        draft.read(key, dtype, "fp16 / precision")
    draft.read("kernels.param_dtype", "float32", "the optimizer keeps fp32 master weights")
    draft.read("kernels.mixed", "cast", "the module is converted")
    for key, value in (("attention", "any"), ("threads", None), ("compile", False), ("deterministic", False)):
        draft.assume(f"kernels.{key}", value, "not in the configuration")
    scale = float(fp16.get("loss_scale", 0) or 0)
    if not on:
        draft.read("loss_scale", {"kind": "none"}, "no fp16")
    elif scale:
        draft.read("loss_scale", {"kind": "static", "scale": scale}, "fp16.loss_scale")
    else:
        draft.read("loss_scale", {
            "kind": "dynamic", "rule": "deepspeed_early", "growth": 2.0, "backoff": 0.5, "consecutive_hysteresis": False,
            "initial": 2.0 ** int(fp16.get("initial_scale_power", 32)), "window": int(fp16.get("loss_scale_window", 1000)),
            "hysteresis": int(fp16.get("hysteresis", 2)), "minimum": float(fp16.get("min_loss_scale", 1)),
        }, "fp16")  # fmt: skip


def _reduction(draft: Draft, v: Mapping[str, Any], pipeline: bool) -> None:
    draft.read("reduction.collective", "all_reduce", "DeeperSpeed 0.3.15")
    draft.assume("reduction.order", {"kind": "direct", "sum_dtype": "wire"}, "NCCL's order was not recorded")
    cap = int((v.get("zero_optimization") or {}).get("reduce_bucket_size", 500_000_000))
    if pipeline:
        cap = 500_000_000
    draft.read("reduction.buckets", {"kind": "capped", "cap_numel": cap}, "closed once it exceeds its cap")
    for key in ("reduction.scaling", "reduction.scaling_first"):
        draft.read(key, [MUL_WIRE_POST], "sums in the gradients' dtype, multiplied by 1/W afterwards")


def _clip(draft: Draft, v: Mapping[str, Any], pipeline: bool, version: Version) -> None:
    limit = float(v.get("gradient_clipping", 0.0) or 0.0)
    rule = {"max_norm": limit, "rule": "deepspeed", "eps": 1e-6}
    if not limit:
        draft.read("clip", None, "gradient_clipping")
    elif pipeline:
        draft.read(
            "clip", {**rule, "scope": "global", "norm": "tensors"}, "pipeline engine: norm of the reduced gradient"
        )
    elif version == "v1.0":
        why = "ZeRO-1 without pipeline in DeeperSpeed 0.3.15: norm of local gradients"
        draft.read("clip", {**rule, "scope": "local", "norm": "flat"}, why)
    else:
        why = "ZeRO-1 without pipeline was looked at in v1.0 only"
        draft.assume("clip", {**rule, "scope": "global", "norm": "flat"}, why)


def _optimizer(draft: Draft, v: Mapping[str, Any]) -> None:
    spec = dict(v["optimizer"])
    if str(spec.get("type", "")).lower() != "adam":
        raise PretraceError(
            f"optimizer {spec.get('type')} is none that plans know", "optimizer.type", "declare `optimizer`"
        )
    params = dict(spec.get("params") or {})
    decay = float(v.get("weight_decay", params.get("weight_decay", 0.01)))
    bare = {"params": ["*bias", "*norm*"], "ndim": "any", "weight_decay": 0.0, "lr_scale": 1.0}
    rest = {"params": ["*"], "ndim": "any", "weight_decay": decay, "lr_scale": 1.0}
    draft.read("optimizer", {
        "kind": "adamw", "kernel": "apex", "betas": list(map(float, params.get("betas", (0.9, 0.999)))),
        "eps": float(params.get("eps", 1e-8)), "eps_place": "corrected", "bias_correction": True, "decay_place": "within",
        "groups": [bare, rest],
    }, "Apex FusedAdam; biases and norms are not decayed")  # fmt: skip


def _schedule(draft: Draft, v: Mapping[str, Any], version: Version) -> None:
    total = int(v.get("lr_decay_iters") or v["train_iters"])
    peak = float(dict(v["optimizer"].get("params") or {}).get("lr", v.get("lr", 0.0)))
    found = {
        "kind": "neox_v1" if version == "v1.0" else "neox", "decay": v["lr_decay_style"], "peak": peak,
        "floor": float(v.get("min_lr", 0.0)), "warmup_steps": total * float(v.get("warmup", 0.01)), "total_steps": total,
    }  # fmt: skip
    if version == "v1.0":
        draft.read("schedule", found, "AnnealingLR of v1.0: towards zero, floor as a clamp, rate 0 first")
    else:
        found["first_step"] = 1 if version == "head" else 0
        draft.read(
            "schedule", found, "AnnealingLR after gpt-neox#1008, #1011" + (" and #1379" if version == "head" else "")
        )
