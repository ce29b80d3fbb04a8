"""The loss scale of fp16 training: a spec and a pure state machine. No torch.

An update whose gradients are not finite is skipped: parameters, moments and the learning-rate schedule stay where they are.
What happens to the scale then differs by program, and with it which later updates are skipped:

    deepspeed_early   DeeperSpeed 0.3.15 (NeoX v1.0) and DeepSpeed for years: grows when iteration - last overflow is a multiple
                      of the window, where the overflow before the first iteration 0 counts as -1; the first hysteresis - 1
                      overflows cost nothing, and growth refills that credit
    deepspeed         DeepSpeed 0.19: the same, growing one iteration later after every overflow and at the start
    megatron          grows after `window` good iterations in a row, the count starts again after growth and after overflow;
                      hysteresis is refilled by growth only; without credit every overflow lowers the scale
    torch             torch.amp.GradScaler: as megatron without hysteresis and without a minimum
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pretrace.errors import PretraceError
from pretrace.spec import Spec


class NoScale(Spec):
    """The loss is differentiated as it is (fp32 and bf16 training)."""

    kind: Literal["none"]


class StaticScale(Spec):
    """The loss times one constant; a gradient that is not finite still skips the update."""

    kind: Literal["static"]
    scale: PositiveFloat


class DynamicScale(Spec):
    """A scale that falls after overflows and grows after a while without."""

    kind: Literal["dynamic"]
    rule: Literal["deepspeed_early", "deepspeed", "megatron", "torch"]
    initial: PositiveFloat
    growth: Annotated[float, Field(gt=1)]
    backoff: Annotated[float, Field(gt=0, lt=1)]
    window: PositiveInt  # iterations without overflow before it grows
    hysteresis: PositiveInt  # overflows before it falls
    consecutive_hysteresis: bool  # deepspeed only: every good iteration refills the credit
    minimum: PositiveFloat

    @model_validator(mode="after")
    def _rule_can(self) -> DynamicScale:
        if self.rule == "torch" and self.hysteresis != 1:
            raise ValueError("torch's scaler has no hysteresis: write 1")
        if not self.rule.startswith("deepspeed") and self.consecutive_hysteresis:
            raise ValueError("consecutive_hysteresis is DeepSpeed's")
        if self.minimum > self.initial:
            raise ValueError("minimum exceeds initial")
        return self


LossScaleSpec = Annotated[NoScale | StaticScale | DynamicScale, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class LossScaleState:
    """Where the machine stands before an iteration; kept in checkpoints."""

    scale: float
    credit: int = 1  # overflows left before the scale falls
    good: int = 0  # megatron, torch: good iterations in a row
    iteration: int = 0  # deepspeed: iterations so far, skipped ones included
    last_overflow: int = -1  # deepspeed: iteration of the last overflow


def start(spec: NoScale | StaticScale | DynamicScale) -> LossScaleState:
    """The state before the first iteration."""
    if isinstance(spec, DynamicScale):
        return LossScaleState(spec.initial, spec.hysteresis)
    return LossScaleState(spec.scale if isinstance(spec, StaticScale) else 1.0)


def advance(
    spec: NoScale | StaticScale | DynamicScale, state: LossScaleState, *, overflow: bool
) -> tuple[LossScaleState, bool]:
    """The state after an iteration, and whether its update is skipped.

    Raises
    ------
    PretraceError
        If a gradient is not finite although the loss is not scaled: there is nothing to lower.
    """
    if isinstance(spec, NoScale):
        if overflow:
            raise PretraceError(
                "a gradient is not finite, and the plan has no loss scale that could be lowered",
                "step.loss_scale",
                "look at the alarms of this step; fp16 needs loss_scale static or dynamic",
            )
        return state, False
    if isinstance(spec, StaticScale):
        return state, overflow
    rule = _deepspeed if spec.rule.startswith("deepspeed") else _megatron
    return rule(spec, state, overflow), overflow


def _lowered(spec: DynamicScale, scale: float) -> float:
    # torch's scaler has no floor; `minimum` is then only where the collapse alarm looks.
    return scale * spec.backoff if spec.rule == "torch" else max(scale * spec.backoff, spec.minimum)


def _deepspeed(spec: DynamicScale, state: LossScaleState, overflow: bool) -> LossScaleState:
    here, scale, credit = state.iteration, state.scale, state.credit
    if overflow:
        if credit == 1:
            scale = _lowered(spec, scale)
        else:
            credit -= 1
        return replace(state, scale=scale, credit=credit, last_overflow=here, iteration=here + 1)
    since = here - state.last_overflow - (spec.rule == "deepspeed")
    grows = since > 0 and since % spec.window == 0
    if spec.consecutive_hysteresis or grows:
        credit = spec.hysteresis
    return replace(state, scale=scale * spec.growth if grows else scale, credit=credit, iteration=here + 1)


def _megatron(spec: DynamicScale, state: LossScaleState, overflow: bool) -> LossScaleState:
    if overflow:
        # Upstream lets its counter run below zero; every value at or below zero means the same.
        credit = max(state.credit - 1, 0)
        scale = _lowered(spec, state.scale) if credit == 0 else state.scale
        return replace(state, scale=scale, credit=credit, good=0)
    if state.good + 1 == spec.window:
        return replace(state, scale=state.scale * spec.growth, credit=spec.hysteresis, good=0)
    return replace(state, good=state.good + 1)
