"""One update of a run: the state moves, a record says what happened."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pretrace.checkpoint.view import StateView
from pretrace.data.order import Order, open_order
from pretrace.errors import PretraceError
from pretrace.model.decoder import Attention, Decoder
from pretrace.model.init import initialise
from pretrace.model.state import load
from pretrace.recipe.spec import Recipe
from pretrace.runlog.record import Record
from pretrace.step.execute import StepOutcome, execute
from pretrace.step.state import StepState
from pretrace.step.state import begin as begin_state


@dataclass(slots=True)
class Training:
    """A run between two updates: what is declared, what has become of it, and how many updates are done."""

    recipe: Recipe
    state: StepState
    order: Order
    step: int


def begin(recipe: Recipe, *, start: StateView | None = None, order: Order | None = None) -> Training:
    """The run before its first update: initial values by the recipe, or the canonical tensors of `start`.

    `order` spares opening the data again where the caller has opened `recipe.data` already.

    Raises
    ------
    PretraceError
        If the data cannot be opened, are too few for the run, or `start` does not fit the model.
    """
    import torch

    order = order if order is not None else open_order(recipe.data)
    _enough(recipe, order)
    attention: Attention = "eager" if recipe.step.kernels.attention == "eager" else "sdpa"
    model = Decoder(recipe.model, attention)
    if start is None:
        initialise(model, recipe.model, recipe.seeds.init)
    else:
        load(model, start)
    model.to(getattr(torch, recipe.step.kernels.param_dtype))
    return Training(recipe, begin_state(recipe.step, model), order, 0)


def _enough(recipe: Recipe, order: Order) -> None:
    wanted = recipe.steps * recipe.step.global_batch
    if wanted > len(order):
        raise PretraceError(
            f"{recipe.steps:,} updates of {recipe.step.global_batch:,} sequences need {wanted:,} samples, "
            f"the data give {len(order):,}",
            "steps",
            "train for fewer updates, or let the order repeat its data (num_samples, epochs)",
        )


def advance(training: Training) -> Record:
    """Makes the next update, in place, and returns its record."""
    started = time.perf_counter()
    plan = training.recipe.step
    outcome = execute(plan, training.state, training.order.batch, step=training.step)
    training.step += 1
    span = plan.topology.step_positions(training.step - 1)
    return record_of(outcome, (span.start, span.stop), time.perf_counter() - started)


def record_of(outcome: StepOutcome, positions: tuple[int, int], elapsed_s: float) -> Record:
    """The record of an outcome."""
    return Record(
        step=outcome.step + 1,
        loss=outcome.loss[outcome.denominator],
        lr=outcome.lr,
        n_tokens=outcome.n_positions,
        n_counted=outcome.n_counted,
        z_loss=outcome.z_loss[outcome.denominator],
        losses={str(name): value for name, value in outcome.loss.items()},
        z_losses={str(name): value for name, value in outcome.z_loss.items()},
        grad_norm=outcome.grad_norm,
        clip_coefficient=outcome.clip_coefficient,
        param_norm=outcome.param_norm,
        update_norm=outcome.update_norm,
        logit_mean=outcome.logits.mean,
        logit_rms=outcome.logits.rms,
        logit_max=outcome.logits.max,
        logit_lse=outcome.logits.lse,
        loss_scale=outcome.loss_scale,
        skipped=outcome.skipped,
        tokens_per_s=outcome.n_positions / elapsed_s if elapsed_s > 0 else None,
        elapsed_s=elapsed_s,
        positions=positions,
    )
