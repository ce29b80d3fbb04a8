"""Many orders of one recipe trained at once: the decoys of the self-test in a fourth of the time.

The parameters of all runs are stacked and one batched forward and backward serves them all. The arithmetic is that of the recipe,
in another order of additions, so a run agrees with `train.replay` to float32 rounding, not bit for bit; the runs of one ensemble
are treated exactly alike, which is what the rank among decoys needs. Only plans without anything to reduce are taken.

Axes: R runs, B sequences, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pretrace.checkpoint.view import StateView
from pretrace.data import Order
from pretrace.errors import PretraceError
from pretrace.model.decoder import Decoder
from pretrace.model.state import load
from pretrace.recipe import Recipe
from pretrace.step.optim_spec import AdamW, assign
from pretrace.step.plan import StepPlan
from pretrace.step.schedule import lr_at

Arrays = dict[str, NDArray[np.float32]]


def replay_together(recipe: Recipe, orders: Sequence[Order], step: int, start: StateView) -> list[Arrays]:
    """The parameters after `step` updates of `recipe` on each of `orders`, all from `start`.

    Raises
    ------
    PretraceError
        If the plan has more than one rank or micro-step, another precision than float32, or another optimizer than AdamW.
    """
    plan, optimizer = recipe.step, _simple(recipe.step)
    model = Decoder(recipe.model, "eager")
    load(model, start)
    stacked = {name: p.detach().expand(len(orders), *p.shape).clone() for name, p in model.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in stacked.items()}
    groups = assign(optimizer.groups, {name: p.dim() - 1 for name, p in stacked.items()})
    gradient = vmap(grad(lambda params, tokens, labels: _loss(model, params, tokens, labels)))
    for k in range(step):
        batches = [order.batch(plan.topology.step_positions(k)) for order in orders]
        tokens, labels = (
            torch.from_numpy(np.stack([getattr(b, part) for b in batches])) for part in ("tokens", "labels")
        )
        grads = _clip(gradient(stacked, tokens, labels), plan)
        for name, p in stacked.items():
            group = optimizer.groups[groups[name]]
            _adamw(
                optimizer,
                p,
                grads[name],
                moments[name],
                lr_at(plan.schedule, k) * group.lr_scale,
                group.weight_decay,
                k + 1,
            )
    return [{name: p[run].numpy() for name, p in stacked.items()} for run in range(len(orders))]


def _simple(plan: StepPlan) -> AdamW:
    kernels, optimizer = plan.kernels, plan.optimizer
    plain = plan.world_size == plan.grad_accum_steps == 1 and kernels.compute_dtype == kernels.param_dtype == "float32"
    if not plain or not isinstance(optimizer, AdamW) or optimizer.decay_place != "before" or plan.loss.z_loss:
        raise PretraceError(
            "only one rank, one micro-step, float32 and AdamW are trained together", "step", "use train.replay"
        )
    return optimizer


def _loss(model: Decoder, params: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> Tensor:
    logits = functional_call(model, params, (tokens,))
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def _clip(grads: dict[str, Tensor], plan: StepPlan) -> dict[str, Tensor]:
    if plan.clip is None:
        return grads
    squares: Any = sum(g.flatten(1).double().square().sum(1) for g in grads.values())
    factor = (plan.clip.max_norm / (squares.sqrt() + plan.clip.eps)).clamp(max=1.0).float()
    return {name: g * factor.view(-1, *[1] * (g.dim() - 1)) for name, g in grads.items()}


def _adamw(spec: AdamW, p: Tensor, g: Tensor, moments: tuple[Tensor, Tensor], lr: float, decay: float, t: int) -> None:
    first, second = moments
    p.mul_(1 - lr * decay)
    first.lerp_(g, 1 - spec.betas[0])
    second.mul_(spec.betas[1]).addcmul_(g, g, value=1 - spec.betas[1])
    root = (second / (1 - spec.betas[1] ** t)).sqrt_().add_(spec.eps)
    p.addcdiv_(first, root, value=-lr / (1 - spec.betas[0] ** t))
