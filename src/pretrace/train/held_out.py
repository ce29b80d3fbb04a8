"""The held-out loss on the way, and the early end of a run that has reached its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pretrace.batch import Batch, within
from pretrace.data.order import Order, open_order
from pretrace.errors import PretraceError
from pretrace.recipe.spec import EvaluationSpec, Recipe
from pretrace.runlog.record import Record
from pretrace.score.likelihood import HeldOutLoss, held_out_loss
from pretrace.step.kernels import in_force
from pretrace.train.engage import whole_model
from pretrace.train.update import Training

LOSS, TOKENS = "held_out_loss", "held_out_tokens"  # keys of a record's notes


def held_out_batches(spec: EvaluationSpec, vocab_size: int, order: Order | None = None) -> tuple[Batch, ...]:
    """The held-out samples as micro-batches.

    Raises
    ------
    PretraceError
        If the data cannot be opened, are too few, or hold an id beyond the vocabulary.
    """
    order = order if order is not None else open_order(spec.data)
    if len(order) < spec.n_samples:
        raise PretraceError(f"{spec.n_samples:,} held-out samples are asked for, the data give {len(order):,}",
                            "evaluation.n_samples", "evaluate on fewer samples")  # fmt: skip
    starts = range(0, spec.n_samples, spec.micro_batch)
    spans = (range(at, min(at + spec.micro_batch, spec.n_samples)) for at in starts)
    return tuple(
        within(order.batch(span), vocab_size, f"held-out samples {span.start:,}..{span.stop - 1:,}") for span in spans
    )


def measure(training: Training, batches: tuple[Batch, ...]) -> HeldOutLoss:
    """The held-out loss of the parameters as they are, with the plan's kernels: what is trained is measured."""
    model = whole_model(training)
    kernels = training.recipe.step.kernels
    parameters = dict(model.named_parameters())
    with in_force(kernels, parameters, training.state.device.type):
        return held_out_loss(model, batches)


def noted(record: Record, found: HeldOutLoss) -> Record:
    """The record with the held-out loss among its notes."""
    return replace(record, notes={**record.notes, LOSS: found.nats_per_token, TOKENS: found.n_tokens})


def reached(recipe: Recipe, notes: Mapping[str, object]) -> bool:
    """Whether a record's notes say that the run has come to its target."""
    loss = notes.get(LOSS)
    target = recipe.evaluation.target if recipe.evaluation is not None else None
    return target is not None and isinstance(loss, float) and loss <= target
