"""A live torch optimizer as plain data of an `OptimizerSpec`: kernel, constants, and which parameters are decayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pretrace.errors import PretraceError
from pretrace.step.importers import groups_of

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def name_of(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters of a wrapped or bare model by bare name."""
    return {name_of(n): p for n, p in model.named_parameters() if p.requires_grad}


def optimizer_of(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """The optimizer as plain data of an `OptimizerSpec`.

    Raises
    ------
    PretraceError
        If it is none of torch's Adam, AdamW and SGD, uses an option that plans do not have, or mixes settings.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    groups = inner.param_groups
    if isinstance(inner, (Adam, AdamW)):
        return _adam(inner, groups, model)
    if isinstance(inner, SGD):
        settings = {key: _one(groups, key) for key in ("momentum", "dampening", "nesterov")}
        return {"kind": "sgd", **settings, "groups": _groups(groups, model)}
    raise PretraceError(f"{type(inner).__name__} is no optimizer that plans know", "optimizer",
                        "use torch.optim.AdamW, Adam or SGD, or declare `optimizer`")  # fmt: skip


def _adam(inner: Optimizer, groups: list[dict[str, Any]], model: nn.Module) -> dict[str, Any]:
    for option in ("amsgrad", "maximize", "capturable", "differentiable"):
        if any(group.get(option) for group in groups):
            raise PretraceError(f"plans have no {option}", f"{type(inner).__name__}.{option}", "switch it off")
    decoupled = isinstance(inner, AdamW) or bool(_one(groups, "decoupled_weight_decay"))
    return {
        "kind": "adamw", "kernel": _kernel(groups, next(model.parameters())), "betas": list(map(float, _one(groups, "betas"))),
        "eps": float(_one(groups, "eps")), "eps_place": "corrected", "bias_correction": True,
        "decay_place": "before" if decoupled else "gradient", "groups": _groups(groups, model),
    }  # fmt: skip


def _kernel(groups: list[dict[str, Any]], parameter: torch.Tensor) -> str:
    if _one(groups, "fused"):
        return "torch_fused"
    foreach = _one(groups, "foreach")
    # torch's own choice where nothing is said: foreach on accelerators, a loop on the CPU.
    chosen = parameter.device.type != "cpu" if foreach is None else bool(foreach)
    return "torch_foreach" if chosen else "torch_loop"


def _one(groups: list[dict[str, Any]], key: str) -> Any:
    values = {repr(group.get(key)): group.get(key) for group in groups}
    if len(values) > 1:
        raise PretraceError(
            f"the groups differ in {key}", "optimizer.param_groups", "plans have one value for all groups"
        )
    return next(iter(values.values()))


def _groups(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    names = {id(p): name for name, p in named_parameters(model).items()}
    ndims = {name: p.ndim for name, p in named_parameters(model).items()}
    top = max(base_lr(group) for group in groups) or 1.0
    members = [
        ([names[id(p)] for p in g["params"] if id(p) in names], float(g["weight_decay"]), base_lr(g) / top)
        for g in groups
    ]
    return [group.model_dump(mode="json") for group in groups_of(members, ndims)]


def base_lr(group: Mapping[str, Any]) -> float:
    """The peak rate of a group: what its scheduler started from, else its present one."""
    return float(group.get("initial_lr", group["lr"]))
