"""The learning rate as a pure function of the number of updates done: `lr_at(spec, step)`.

`step` counts updates that took place (skipped ones do not advance it); step 0 is the first update. Every kind is the formula
of one program, operation by operation, so that the floats are equal to its floats. No torch.

Two traps that this file exists for: NeoX v1.0 and NeoX today write the same settings and mean different curves (45% apart at
80% of Pythia's run), and NeoX, Megatron and HF use lr 0 at their first update, while nanoGPT and llm.c do not.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from pretrace.spec import Spec

Decay = Literal["cosine", "linear", "exponential", "constant"]


class Constant(Spec):
    """One rate, after a linear warm-up from 0 (HF `constant_with_warmup`; warmup_steps 0: from the start)."""

    kind: Literal["constant"]
    peak: NonNegativeFloat
    warmup_steps: NonNegativeInt


class NeoxV1(Spec):
    """GPT-NeoX v1.0 (Pythia): decays towards zero over all of `total_steps`; the floor is a clamp; lr 0 at the first."""

    kind: Literal["neox_v1"]
    decay: Decay
    peak: NonNegativeFloat
    floor: NonNegativeFloat
    warmup_steps: NonNegativeFloat  # total_steps * warmup fraction; need not be whole
    total_steps: PositiveInt


class Neox(Spec):
    """GPT-NeoX after gpt-neox#1008/#1011: from peak to floor over what follows the warm-up.

    `first_step` is 0 before gpt-neox#1379 (lr 0 at the first update) and 1 after it.
    """

    kind: Literal["neox"]
    decay: Decay
    peak: NonNegativeFloat
    floor: NonNegativeFloat
    warmup_steps: NonNegativeFloat
    total_steps: PositiveInt
    first_step: Literal[0, 1]


class Megatron(Spec):
    """Megatron-core's OptimizerParamScheduler; counted in samples: `increment` of them an update."""

    kind: Literal["megatron"]
    decay: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"]
    initial: NonNegativeFloat
    peak: NonNegativeFloat
    floor: NonNegativeFloat
    warmup: NonNegativeInt  # samples
    decay_until: PositiveInt  # samples
    increment: PositiveInt  # samples an update
    wsd_decay: NonNegativeInt  # samples of the last part; 0 unless decay is WSD
    wsd_shape: Literal["linear", "cosine", "exponential", "minus_sqrt"]


class HfLinear(Spec):
    """transformers `linear`."""

    kind: Literal["hf_linear"]
    peak: NonNegativeFloat
    warmup_steps: NonNegativeInt
    total_steps: PositiveInt


class HfCosine(Spec):
    """transformers `cosine` (floor_ratio 0) and `cosine_with_min_lr`."""

    kind: Literal["hf_cosine"]
    peak: NonNegativeFloat
    warmup_steps: NonNegativeInt
    total_steps: PositiveInt
    cycles: PositiveFloat  # 0.5: one half wave
    floor_ratio: NonNegativeFloat


class NanoGpt(Spec):
    """nanoGPT's get_lr: warm-up that does not start at 0, cosine to the floor, the floor afterwards."""

    kind: Literal["nanogpt"]
    peak: NonNegativeFloat
    floor: NonNegativeFloat
    warmup_steps: NonNegativeInt
    decay_steps: PositiveInt
    warmup_divisor: Literal[
        "warmup", "warmup_plus_one"
    ]  # changed upstream in 2024: iter / w became (iter + 1) / (w + 1)


class LlmC(Spec):
    """llm.c's cosine, in single precision as its C code computes it."""

    kind: Literal["llmc"]
    peak: NonNegativeFloat
    floor_ratio: NonNegativeFloat
    warmup_steps: NonNegativeInt
    total_steps: PositiveInt


class OpenLm(Spec):
    """open_lm's cosine_lr: warm-up from 1/w, a cosine from peak to `cooldown`, `floor` as a clamp after the warm-up."""

    kind: Literal["open_lm"]
    peak: NonNegativeFloat
    cooldown: NonNegativeFloat
    floor: NonNegativeFloat
    warmup_steps: NonNegativeInt
    total_steps: PositiveInt


class Wsd(Spec):
    """Warm-up, stable, decay, as transformers `warmup_stable_decay`."""

    kind: Literal["wsd"]
    peak: NonNegativeFloat
    floor_ratio: NonNegativeFloat
    warmup_steps: NonNegativeInt
    stable_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    warmup_shape: Literal["linear", "cosine", "1-sqrt"]
    decay_shape: Literal["linear", "cosine", "1-sqrt"]
    cycles: PositiveFloat


AnySchedule = Constant | NeoxV1 | Neox | Megatron | HfLinear | HfCosine | NanoGpt | LlmC | OpenLm | Wsd
ScheduleSpec = Annotated[AnySchedule, Field(discriminator="kind")]


def lr_at(spec: AnySchedule, step: int) -> float:
    """The learning rate of the update that follows `step` updates.

    >>> pythia = NeoxV1(kind="neox_v1", decay="cosine", peak=1.6e-4, floor=1.6e-5, warmup_steps=1430, total_steps=143000)
    >>> [lr_at(pythia, step) for step in (0, 1430, 143000)]
    [0.0, 0.00016, 1.6e-05]
    """
    match spec:
        case Constant():
            return spec.peak * (_ramp(step, spec.warmup_steps) if step < spec.warmup_steps else 1.0)
        case NeoxV1():
            return _neox_v1(spec, step)
        case Neox():
            return _neox(spec, step)
        case Megatron():
            return _megatron(spec, step * spec.increment)
        case HfLinear():
            return spec.peak * _hf_linear(spec, step)
        case HfCosine():
            return spec.peak * _hf_cosine(spec, step)
        case NanoGpt():
            return _nanogpt(spec, step)
        case LlmC():
            return _llmc(spec, step)
        case OpenLm():
            return _open_lm(spec, step)
        case Wsd():
            return spec.peak * _wsd(spec, step)


def _ramp(step: int, n: int) -> float:
    return float(step) / float(max(1, n))


def _neox_v1(spec: NeoxV1, step: int) -> float:
    n = min(step, spec.total_steps - spec.warmup_steps)
    if spec.warmup_steps > 0 and step <= spec.warmup_steps:
        return spec.peak * n / spec.warmup_steps
    n -= spec.warmup_steps
    match spec.decay:
        case "linear":
            lr = spec.peak * (spec.total_steps - n) / spec.total_steps
        case "cosine":
            lr = spec.peak / 2.0 * (math.cos(math.pi * n / spec.total_steps) + 1)
        case "exponential":
            lr = spec.peak * math.exp(-0.693 * n / spec.total_steps)
        case "constant":
            lr = spec.peak
    return max(lr, spec.floor)


def _neox(spec: Neox, step: int) -> float:
    if spec.warmup_steps > 0 and step <= spec.warmup_steps:
        return spec.peak * max(spec.first_step, step) / spec.warmup_steps
    # Past the end every curve stays at its end value.
    n = min(step, spec.total_steps) - spec.warmup_steps
    span = spec.total_steps - spec.warmup_steps
    match spec.decay:
        case "linear":
            lr = spec.peak - (spec.peak - spec.floor) * n / span
        case "cosine":
            lr = spec.floor + ((spec.peak - spec.floor) / 2.0 * (math.cos(math.pi * n / span) + 1))
        case "exponential":
            lr = spec.peak * math.exp(-0.693 * n / span)
        case "constant":
            lr = spec.peak
    return max(lr, spec.floor)


def _megatron(spec: Megatron, n: int) -> float:
    if spec.warmup > 0 and n <= spec.warmup:
        return spec.initial + ((spec.peak - spec.initial) * float(n) / float(spec.warmup))
    if spec.decay == "constant":
        return spec.peak
    if n > spec.decay_until:
        return spec.floor
    if spec.decay == "inverse-square-root":
        return max(spec.floor, spec.peak * math.pow(max(spec.warmup, 1), 0.5) / math.pow(max(n, 1), 0.5))
    ratio = float(n - spec.warmup) / float(spec.decay_until - spec.warmup)
    return spec.floor + _megatron_share(spec, n, ratio) * (spec.peak - spec.floor)


def _megatron_share(spec: Megatron, n: int, ratio: float) -> float:
    if spec.decay == "linear":
        return 1.0 - ratio
    if spec.decay == "cosine":
        return 0.5 * (math.cos(math.pi * ratio) + 1.0)
    start = spec.decay_until - spec.wsd_decay
    if n <= start:
        return 1.0
    part = float(n - start) / float(spec.wsd_decay)
    match spec.wsd_shape:
        case "linear":
            return 1.0 - part
        case "cosine":
            return 0.5 * (math.cos(math.pi * part) + 1.0)
        case "exponential":
            return 2.0 * math.pow(0.5, part) - 1.0
        case "minus_sqrt":
            return 1.0 - math.sqrt(part)


def _hf_linear(spec: HfLinear, step: int) -> float:
    if step < spec.warmup_steps:
        return _ramp(step, spec.warmup_steps)
    return max(0.0, float(spec.total_steps - step) / float(max(1, spec.total_steps - spec.warmup_steps)))


def _hf_cosine(spec: HfCosine, step: int) -> float:
    if step < spec.warmup_steps:
        return _ramp(step, spec.warmup_steps)
    progress = float(step - spec.warmup_steps) / float(max(1, spec.total_steps - spec.warmup_steps))
    factor = 0.5 * (1.0 + math.cos(math.pi * float(spec.cycles) * 2.0 * progress))
    return max(0.0, factor * (1 - spec.floor_ratio) + spec.floor_ratio)


def _nanogpt(spec: NanoGpt, step: int) -> float:
    if step < spec.warmup_steps:
        if spec.warmup_divisor == "warmup_plus_one":
            return spec.peak * (step + 1) / (spec.warmup_steps + 1)
        return spec.peak * step / spec.warmup_steps
    if step > spec.decay_steps:
        return spec.floor
    ratio = (step - spec.warmup_steps) / (spec.decay_steps - spec.warmup_steps)
    return spec.floor + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (spec.peak - spec.floor)


def _llmc(spec: LlmC, step: int) -> float:
    one = np.float32(1)
    peak = np.float32(spec.peak)
    if step < spec.warmup_steps:
        return float(peak * np.float32(step + 1) / np.float32(spec.warmup_steps))
    ratio = np.float32(step - spec.warmup_steps) / np.float32(spec.total_steps - spec.warmup_steps)
    # M_PI is a double in C: the product is formed in double and rounded when it is handed to cosf.
    share = np.float32(0.5) * (one + np.cos(np.float32(math.pi * float(ratio))))
    floor = peak * np.float32(spec.floor_ratio)
    return float(floor + share * (peak - floor))


def _open_lm(spec: OpenLm, step: int) -> float:
    if step < spec.warmup_steps:
        return spec.peak * (step + 1) / spec.warmup_steps
    ratio = np.pi * (step - spec.warmup_steps) / (spec.total_steps - spec.warmup_steps)
    return max(float(spec.cooldown + 0.5 * (1 + np.cos(ratio)) * (spec.peak - spec.cooldown)), spec.floor)


def _wsd(spec: Wsd, step: int) -> float:
    if step < spec.warmup_steps:
        return _shaped(_rising(spec, _ramp(step, spec.warmup_steps)), spec.floor_ratio)
    if step < spec.warmup_steps + spec.stable_steps:
        return 1.0
    into = step - spec.warmup_steps - spec.stable_steps
    if into < spec.decay_steps:
        return _shaped(_falling(spec, _ramp(into, spec.decay_steps)), spec.floor_ratio)
    return spec.floor_ratio


def _shaped(factor: float, floor_ratio: float) -> float:
    return max(0.0, factor * (1.0 - floor_ratio) + floor_ratio)


def _rising(spec: Wsd, progress: float) -> float:
    match spec.warmup_shape:
        case "linear":
            return progress
        case "cosine":
            return 0.5 * (1.0 - math.cos(math.pi * progress))
        case "1-sqrt":
            return 1.0 - math.sqrt(1.0 - progress)


def _falling(spec: Wsd, progress: float) -> float:
    match spec.decay_shape:
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * float(spec.cycles) * 2.0 * progress))
        case "1-sqrt":
            return 1.0 - math.sqrt(progress)
