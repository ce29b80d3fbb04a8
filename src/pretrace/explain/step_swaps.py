"""Measures what each differing field of two plans does to one update: one state, one batch, one field at a time.

One step is enough to rank causes: the state is the same for all, so nothing has been amplified by training yet. Some updates
are made under plan A first, because Adam's first update is the sign of the gradient and hides its size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pretrace.batch import Batch
from pretrace.errors import PretraceError
from pretrace.explain.swaps import Explanation, Swap, SwapEffect, differing, rank, swapped
from pretrace.step.execute import execute, gradient
from pretrace.step.finish import finish
from pretrace.step.plan import StepPlan
from pretrace.step.state import StepState, begin
from pretrace.step.telemetry import head_leak
from pretrace.step.visits import UNBOUNDED, Budget

Read = Callable[[range], Batch]
HEAD = "head.weight"
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: two plans, a model, data, and where in training.

    model : at the state that both plans start from; it is not changed.
    read : the micro-batch at a range of positions; updates before the measured one read the first positions.
    warmup : updates under plan A before the measured one.
    at_step : the update whose learning rate and bias corrections are used; None: the one after the warm-up.
    """

    a: StepPlan
    b: StepPlan
    model: nn.Module
    read: Read
    warmup: int = 3
    at_step: int | None = None
    budget: Budget = UNBOUNDED


@dataclass(frozen=True, slots=True)
class _Made:
    """One update: gradient and movement as one vector each, and what the executor said."""

    gradient: Tensor
    movement: Tensor
    leak: float | None
    clip_coefficient: float
    skipped: bool
    lr: float
    loss: float


def explain_step(asked: Question, progress: Callable[[str], None] | None = None) -> Explanation:
    """Swaps one field of plan A for plan B's at a time and measures the update.

    Parameters
    ----------
    progress : is told the name of each field before it is measured.

    Raises
    ------
    PretraceError
        If plan A itself cannot be computed.
    """
    tell = progress or (lambda _: None)
    tell("warm-up")
    state = _warm(asked)
    tell("plan A")
    base = _update(asked.a, state, asked)
    effects = []
    for swap in differing(asked.a, asked.b):
        tell(swap.field)
        effects.append(_effect(asked, state, base, swap))
    tell("plan B")
    everything = Swap("everything", (), asked.a.digest()[:6], asked.b.digest()[:6])
    whole = _measure(lambda: asked.b, asked, state, base, everything)
    return Explanation(_where(asked), _compared(base, base, Swap("nothing", (), "", "")), rank(effects), whole)


def _where(asked: Question) -> int:
    return asked.warmup if asked.at_step is None else asked.at_step


def _warm(asked: Question) -> StepState:
    """The state after the warm-up under plan A, with the age that was asked for."""
    state = begin(asked.a, copy.deepcopy(asked.model))
    for step in range(asked.warmup):
        execute(asked.a, state, asked.read, step=step, budget=asked.budget)
    state.optimizer.step = _where(asked)
    return state


def _effect(asked: Question, state: StepState, base: _Made, swap: Swap) -> SwapEffect:
    return _measure(lambda: swapped(asked.a, asked.b, swap), asked, state, base, swap)


def _measure(plan: Callable[[], StepPlan], asked: Question, state: StepState, base: _Made, swap: Swap) -> SwapEffect:
    try:
        return _compared(_update(plan(), state, asked), base, swap)
    except PretraceError as error:
        return SwapEffect(swap, NAN, NAN, NAN, NAN, False, None, NAN, NAN, NAN, NAN, fault=error.what)


def _update(plan: StepPlan, state: StepState, asked: Question) -> _Made:
    """One update of a copy of `state` under `plan`, on the positions after those of the warm-up."""
    here = _transplanted(plan, state)
    start = asked.warmup * asked.a.global_batch - plan.global_batch
    scale = here.loss_scale.scale
    # Step 1 of a plan reads the second global batch; the shift makes that the same sequences for every plan.
    found = gradient(
        plan, here, lambda r: asked.read(range(r.start + start, r.stop + start)), step=1, budget=asked.budget
    )
    by_name = found.by_name(here)
    flat = torch.cat([g.double().reshape(-1) for g in by_name.values()]) / scale
    leak = head_leak(by_name[HEAD]) if HEAD in by_name else None
    before = [p.detach().clone() for p in here.params.values()]
    done = finish(plan, here, found.way, found.reduced)
    moved = [(p.detach().double() - old.double()).reshape(-1) for p, old in zip(here.params.values(), before)]
    losses = float(found.books.losses.sum()) / max(int(found.counts.labels.sum()), 1)
    return _Made(flat, torch.cat(moved), leak, done.clip_coefficient, done.skipped, done.lr, losses)


def _transplanted(plan: StepPlan, state: StepState) -> StepState:
    """A copy of the state that `plan` can go on with: its dtypes, moments of the same names, a running process."""
    model = copy.deepcopy(state.model).to(getattr(torch, plan.kernels.param_dtype))
    here = begin(plan, model)
    here.optimizer.step = state.optimizer.step
    for slot, held in here.optimizer.tensors.items():
        for name, tensor in held.items():
            given = state.optimizer.tensors.get(slot, {}).get(name)
            if given is not None:
                tensor.copy_(given)
    here.updates_since_start = 1  # layouts of a run that goes on, not of its first update
    return here


def _compared(made: _Made, base: _Made, swap: Swap) -> SwapEffect:
    gradient, cosine, gain = _against(made.gradient, base.gradient)
    update, update_cosine, _ = _against(made.movement, base.movement)
    return SwapEffect(
        swap=swap, gradient=gradient, gradient_cosine=cosine, gain=gain, clip_coefficient=made.clip_coefficient,
        skipped=made.skipped, head_leak=made.leak, lr=made.lr, loss=made.loss, update=update, update_cosine=update_cosine,
    )  # fmt: skip


def _against(x: Tensor, base: Tensor) -> tuple[float, float, float]:
    """|x - base| / |base|, cosine, gain; NaN where there is nothing to compare with."""
    length, other = float(base.norm()), float(x.norm())
    if not length:
        return (0.0, NAN, NAN) if not other else (math.inf, NAN, NAN)
    dot = float(x @ base)
    cosine = dot / (length * other) if other else NAN
    return float((x - base).norm()) / length, min(cosine, 1.0) if cosine == cosine else NAN, dot / length**2
