"""What one update did, as plain numbers: the same whether ranks were virtual, shared by processes, or real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pretrace.step.denominators import Counts, losses_under_all
from pretrace.step.evaluate import Books
from pretrace.step.finish import Finished
from pretrace.step.loss_spec import Denominator
from pretrace.step.plan import StepPlan
from pretrace.step.telemetry import LogitStats


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one update did."""

    step: int  # updates done before this one
    loss: Mapping[Denominator, float]  # cross entropy in nats under every denominator; the plan's own is among them
    z_loss: Mapping[Denominator, float]
    denominator: Denominator  # the plan's
    n_counted: int  # labels that the loss looked at
    n_positions: int
    lr: float
    grad_norm: float  # of the unscaled gradient, before clipping
    clip_coefficient: float  # 1: nothing was clipped
    loss_scale: float  # of this update
    skipped: bool  # an overflow: parameters, moments and schedule stayed where they were
    param_norm: float  # after the update
    update_norm: float
    logits: LogitStats  # over counted positions; zeros where no label was counted
    evaluations: int  # micro-batches evaluated by this process, repetitions for want of memory included
    peak_parked_bytes: int  # gradients that waited for their turn in the order


def outcome_of(
    plan: StepPlan,
    step: int,
    counts: Counts,
    books: Books,
    done: Finished,
    *,
    evaluations: int,
    peak_parked_bytes: int = 0,
) -> StepOutcome:
    """The figures of an update from its complete books."""
    return StepOutcome(
        step=step,
        loss=losses_under_all(books.losses, counts),
        z_loss=losses_under_all(books.z_losses, counts),
        denominator=plan.loss.denominator,
        n_counted=int(counts.labels.sum()),
        n_positions=counts.positions,
        lr=done.lr,
        grad_norm=done.grad_norm,
        clip_coefficient=done.clip_coefficient,
        loss_scale=done.loss_scale,
        skipped=done.skipped,
        param_norm=done.param_norm,
        update_norm=done.update_norm,
        logits=books.logit_sums().stats or LogitStats(0.0, 0.0, 0.0, 0.0),
        evaluations=evaluations,
        peak_parked_bytes=peak_parked_bytes,
    )
