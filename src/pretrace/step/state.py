"""What an update changes: model, moments, loss scale, and how many updates this process has made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pretrace.errors import PretraceError
from pretrace.step.buckets import Param
from pretrace.step.loss import Forward
from pretrace.step.loss_scale import LossScaleState, start
from pretrace.step.optim import OptimizerState, init_state
from pretrace.step.plan import StepPlan


@dataclass(slots=True)
class StepState:
    """The state between two updates. Parameters keep the model's order; tied ones appear once."""

    model: nn.Module
    params: dict[str, nn.Parameter]
    optimizer: OptimizerState
    loss_scale: LossScaleState
    forward: Forward  # the model, or with `loss_rows` its part before the head; compiled if the plan says so
    dtype: torch.dtype  # of the parameters, hence of the gradients that the optimizer sees
    schedule_offset: int = 0  # updates that the learning rate has behind it and the optimizer's moments have not
    updates_since_start: int = 0  # of this process: a restart brings DDP's first layout back
    arrival: tuple[int, ...] | None = None  # parameters in the order in which their gradients are finished
    # Kept between updates to save time; no part of the state.
    scratch: dict[str, Tensor] = field(default_factory=dict)
    routes: dict[Any, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return next(iter(self.params.values())).device

    def described(self, grad_itemsize: int) -> tuple[Param, ...]:
        """The parameters as bucket layouts see them; their gradients have elements of `grad_itemsize` bytes."""
        return tuple(Param(name, tuple(p.shape), grad_itemsize) for name, p in self.params.items())


def begin(plan: StepPlan, model: nn.Module) -> StepState:
    """The state before the first update of `model` under `plan`: zero moments, the initial loss scale.

    Raises
    ------
    PretraceError
        If the model has no parameters, or keeps them in another dtype than the plan's `param_dtype`.
    """
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise PretraceError("the model has no parameter that asks for a gradient", "", "hand over a trainable model")
    want = getattr(torch, plan.kernels.param_dtype)
    odd = [f"{name} is {str(p.dtype).removeprefix('torch.')}" for name, p in params.items() if p.dtype != want]
    if odd:
        raise PretraceError(f"the plan keeps parameters in {plan.kernels.param_dtype}, but {odd[0]}",
                            "step.kernels.param_dtype", "convert the model or correct the plan")  # fmt: skip
    run: Forward = model if plan.kernels.loss_rows is None else _before_head(model)
    if plan.kernels.compile:
        run = torch.compile(run)
    return StepState(model, params, init_state(plan.optimizer, params), start(plan.loss_scale), run, want)


def _before_head(model: nn.Module) -> Forward:
    hidden = getattr(model, "hidden", None)
    if hidden is None or not hasattr(model, "head_weight"):
        raise PretraceError(f"{type(model).__name__} does not separate its head, and the plan takes the loss by rows",
                            "step.kernels.loss_rows", "leave loss_rows out, or train a Decoder")  # fmt: skip
    found: Forward = hidden
    return found
