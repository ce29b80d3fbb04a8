"""Applies an optimizer to named tensors, in place, one update at a time, with the bits of the program that the kernel names.

The three torch kernels call torch's own functional AdamW, so they cannot drift from it. `apex`, `hf` and `plain` are written
out, one rounding for each operation. (A GPU compiler may fuse a multiplication and an addition into one rounding: `apex` is
the rule of FusedAdam, and has its bits where that did not happen.) Everything is elementwise, so a tensor may be a whole
parameter, a flat bucket, or a shard of one (ZeRO-1). A parameter without a gradient is left alone, as torch leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pretrace.errors import PretraceError
from pretrace.step.optim_spec import AdamW, Sgd, assign, slots
from pretrace.step.strips import portions
from pretrace.step.telemetry import update_norm


@dataclass(slots=True)
class OptimizerState:
    """Moments by slot and canonical name, and how many updates each has seen (all the same unless some got no gradient)."""

    step: int = 0  # updates applied; skipped ones do not count
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # slot -> name -> tensor like the parameter


def init_state(spec: AdamW | Sgd, params: Mapping[str, Tensor]) -> OptimizerState:
    """Zero moments for every parameter, of its shape, dtype and device."""
    return OptimizerState(0, {slot: {n: torch.zeros_like(p) for n, p in params.items()} for slot in slots(spec)})


@torch.no_grad()
def update(
    spec: AdamW | Sgd,
    state: OptimizerState,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    lr: float,
    *,
    groups: Mapping[str, int] | None = None,
) -> float:
    """Moves every parameter that has a gradient by one update, in place; moments and step count move with it.

    Returns the L2 norm of what was added to the parameters, for the log.

    Parameters
    ----------
    params, grads : tensors by canonical name; a name absent from `grads` is left alone.
    lr : the learning rate of this update (`schedule.lr_at`); each group scales it.
    groups : group index by name, from `optim_spec.assign`; computed from the tensors' axes when not given. A caller that
        hands over flat tensors gives it, because a flat tensor no longer knows how many axes it had.

    Raises
    ------
    PretraceError
        If a gradient has another shape than its parameter, or a parameter falls into no group.
    """
    _check_shapes(params, grads)
    if groups is None:
        groups = assign(spec.groups, {name: p.ndim for name, p in params.items()})
    state.step += 1
    squares = []
    for index, group in enumerate(spec.groups):
        names = [name for name in params if groups[name] == index and name in grads]
        held = [[state.tensors[slot][n] for n in names] for slot in slots(spec)]
        for p, g, *moments in portions([params[n] for n in names], [grads[n] for n in names], *held):
            before = [t.clone() for t in p]
            _update(spec, group.weight_decay, state.step, lr * group.lr_scale, p, g, moments)
            squares.append(update_norm(before, p) ** 2)
    return math.sqrt(math.fsum(squares))


def _check_shapes(params: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> None:
    for name, grad in grads.items():
        if name not in params or grad.shape != params[name].shape:
            has = tuple(params[name].shape) if name in params else "no such parameter"
            raise PretraceError(f"the gradient of {name} has shape {tuple(grad.shape)}", f"{name}: {has}",
                                "hand over gradients by the names and shapes of the parameters")  # fmt: skip


def _update(
    spec: AdamW | Sgd, wd: float, step: int, lr: float, p: list[Tensor], g: list[Tensor], held: list[list[Tensor]]
) -> None:
    if not p:
        return
    if isinstance(spec, Sgd):
        _sgd(spec, wd, step, lr, p, g, held)
    elif spec.kernel.startswith("torch"):
        _torch_adam(spec, wd, step, lr, p, g, held)
    else:
        for one in zip(p, g, *held, strict=True):
            _KERNELS[spec.kernel](spec, wd, step, lr, *one)


def _torch_adam(
    spec: AdamW, wd: float, step: int, lr: float, p: list[Tensor], g: list[Tensor], held: list[list[Tensor]]
) -> None:
    # torch counts steps in tensors, one a parameter, and increments them itself: hand it the count before this update.
    steps = [torch.tensor(float(step - 1)) for _ in p]
    adam(
        p, g, held[0], held[1], [], steps,
        foreach=spec.kernel == "torch_foreach", fused=spec.kernel == "torch_fused",
        decoupled_weight_decay=spec.decay_place == "before", amsgrad=False, maximize=False,
        beta1=spec.betas[0], beta2=spec.betas[1], lr=lr, weight_decay=wd, eps=spec.eps,
    )  # fmt: skip


def _sgd(
    spec: Sgd, wd: float, step: int, lr: float, p: list[Tensor], g: list[Tensor], held: list[list[Tensor]]
) -> None:
    # torch starts each buffer as a copy of the first gradient: no buffer before the first update.
    first = step == 1 or not held
    buffers: list[Tensor | None] = [None for _ in p] if first else list(held[0])
    sgd(
        p, g, buffers, foreach=False, fused=False, weight_decay=wd, momentum=spec.momentum,
        lr=lr, dampening=spec.dampening, nesterov=spec.nesterov, maximize=False,
    )  # fmt: skip
    if held and first:
        for own, made in zip(held[0], buffers, strict=True):
            own.copy_(made if made is not None else own)


def _corrections(spec: AdamW, step: int) -> tuple[float, float]:
    if not spec.bias_correction:
        return 1.0, 1.0
    return 1 - spec.betas[0] ** step, 1 - spec.betas[1] ** step


def _moments(spec: AdamW, g: Tensor, m: Tensor, v: Tensor) -> None:
    beta1, beta2 = spec.betas
    m.mul_(beta1).add_(g * (1 - beta1))
    v.mul_(beta2).add_((g * (1 - beta2)).mul_(g))


def _sqrt(v: Tensor) -> Tensor:
    # torch's CPU sqrt misses the nearest float for about one number in five (measured, torch 2.13, AVX-512), sqrtf on a
    # GPU and in C for none. Through fp64 it is the nearest (for fp64 itself there is nothing wider).
    return v.double().sqrt().to(v.dtype)


def _apex(spec: AdamW, wd: float, step: int, lr: float, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    c1, c2 = _corrections(spec, step)
    if spec.decay_place == "gradient":
        g = g + p * wd
    _moments(spec, g, m, v)
    move = (m / c1).div_(_sqrt(v / c2).add_(spec.eps))
    if spec.decay_place == "within":
        move.add_(p * wd)
    p.sub_(move.mul_(lr))


def _hf(spec: AdamW, wd: float, step: int, lr: float, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    c1, c2 = _corrections(spec, step)
    m.mul_(spec.betas[0]).add_(g, alpha=1.0 - spec.betas[0])
    v.mul_(spec.betas[1]).addcmul_(g, g, value=1.0 - spec.betas[1])
    size = lr * math.sqrt(c2) / c1 if spec.bias_correction else lr
    p.addcdiv_(m, v.sqrt().add_(spec.eps), value=-size)
    if wd > 0:
        p.add_(p, alpha=-lr * wd)


def _plain(spec: AdamW, wd: float, step: int, lr: float, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    c1, c2 = _corrections(spec, step)
    if spec.decay_place == "gradient":
        g = g + p * wd
    if spec.decay_place == "before":
        p.mul_(1 - lr * wd)
    _moments(spec, g, m, v)
    # eps beside the raw root is the same as eps / sqrt(c2) beside the corrected one.
    root = _sqrt(v).add_(spec.eps).div_(math.sqrt(c2)) if spec.eps_place == "raw" else _sqrt(v / c2).add_(spec.eps)
    move = (m / c1).div_(root)
    if spec.decay_place == "within":
        move.add_(p * wd)
    p.sub_(move.mul_(lr))
    if spec.decay_place == "after":
        p.mul_(1 - lr * wd)


_KERNELS = {"apex": _apex, "hf": _hf, "plain": _plain}
