"""One update of a run: the state moves, a record says what happened."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from pretrace.batch import Batch, within
from pretrace.checkpoint.view import StateView
from pretrace.data.order import Order, open_order
from pretrace.errors import PretraceError
from pretrace.model.decoder import Attention, Decoder
from pretrace.model.init import initialise
from pretrace.model.state import load
from pretrace.recipe.spec import Recipe
from pretrace.runlog.record import Record
from pretrace.step.engine import Engine
from pretrace.step.execute import execute
from pretrace.step.outcome import StepOutcome
from pretrace.step.state import StepState
from pretrace.step.state import begin as begin_state
from pretrace.train.gauge import Gauge, peak_memory_bytes
from pretrace.train.start import open_start, parameters_of, set_moments
from pretrace.train.team import ALONE, Team


@dataclass(slots=True)
class Training:
    """A run between two updates: what is declared, what has become of it, and how many updates are done."""

    recipe: Recipe
    state: StepState
    order: Order
    step: int
    gauge: Gauge | None = None  # where the speed is to be compared with the device's
    team: Team = ALONE
    engine: Engine | None = None  # None: the plan's own executor

    def read(self, positions: range) -> Batch:
        """The micro-batch at `positions`; where something is dropped, samples are named for their generators."""
        where = f"data, samples {positions.start:,}..{positions.stop - 1:,} of the order"
        batch = within(self.order.batch(positions), self.recipe.model.vocab_size, where)
        if not self.recipe.model.dropout.active:
            return batch
        return Batch(batch.tokens, batch.labels, batch.segments, batch.position_ids, np.arange(*_ends(positions)))


def _ends(positions: range) -> tuple[int, int]:
    return positions.start, positions.stop


def begin(
    recipe: Recipe,
    *,
    start: StateView | None = None,
    order: Order | None = None,
    burn_in: bool = True,
    restored: bool = False,
    device: torch.device | str = "cpu",
) -> Training:
    """The run before its first update: the tensors of `start`, else of `recipe.start`, else the recipe's initial values.

    Parameters
    ----------
    start : canonical tensors that stand for step 0.
    order : spares opening the data again where the caller has opened `recipe.data` already.
    burn_in : whether moments that `recipe.start` declares are made.
    restored : a checkpoint is put over everything at once: nothing is read, made or drawn for it, values stay undefined.

    Raises
    ------
    PretraceError
        If the data cannot be opened, are too few for the run, or the start does not fit the model.
    """
    order = order if order is not None else open_order(recipe.data)
    _enough(recipe, order)
    attention: Attention = "eager" if recipe.step.kernels.attention == "eager" else "sdpa"
    kernels = recipe.step.kernels
    if kernels.compile and recipe.model.dropout.active:
        raise PretraceError("dropout draws from a generator a sample, which torch.compile cannot trace",
                            "step.kernels.compile", "do not compile, or train without dropout")  # fmt: skip
    model = Decoder(recipe.model, attention, seed=recipe.seeds.dropout, recompute=kernels.recompute)
    declared = recipe.start if start is None and not restored else None
    with nullcontext() if declared is None else open_start(declared, recipe.model) as theirs:
        if start is not None:
            load(model, start)
        elif theirs is not None:
            load(model, parameters_of(theirs))
        elif not restored:
            initialise(model, recipe.model, recipe.seeds.init)
        model.to(device, getattr(torch, recipe.step.kernels.param_dtype))
        training = Training(recipe, begin_state(recipe.step, model), order, 0)
        training.read(range(recipe.step.micro_batch))  # data of another vocabulary are found before anything is written
        if declared is not None and theirs is not None and burn_in:
            set_moments(declared, recipe.step, training.state, training.read, theirs)
            training.step = declared.step
    return training


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
    if training.engine is not None:
        outcome = training.engine.execute(training.read, step=training.step)
    else:
        outcome = execute(plan, training.state, training.read, step=training.step, group=training.team.group)
    elapsed_s = time.perf_counter() - started
    span = plan.topology.step_positions(training.step)
    training.step += 1
    speed = outcome.n_positions / elapsed_s if elapsed_s > 0 else None
    mfu = None if training.gauge is None else training.gauge.mfu(speed)
    memory = peak_memory_bytes(training.state.device)
    return record_of(outcome, (span.start, span.stop), elapsed_s, mfu=mfu, memory_bytes=memory)


def record_of(
    outcome: StepOutcome,
    positions: tuple[int, int],
    elapsed_s: float,
    *,
    mfu: float | None = None,
    memory_bytes: int | None = None,
) -> Record:
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
        mfu=mfu,
        memory_bytes=memory_bytes,
        elapsed_s=elapsed_s,
        positions=positions,
    )
