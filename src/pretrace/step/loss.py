"""Evaluates one micro-batch: forward, token losses, backward with a weight for every token, and what the log wants to know.

Axes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pretrace.batch import IGNORE_INDEX, Batch
from pretrace.errors import PretraceError
from pretrace.step.head_loss import fused, plain
from pretrace.step.loss_spec import LossSpec
from pretrace.step.telemetry import LogitSums, logit_sums

Forward = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class MicroLoss:
    """Sums over one micro-batch."""

    losses: NDArray[np.float64]  # [B] sum of token losses in nats
    z_losses: NDArray[np.float64]  # [B] sum of coefficient * logsumexp^2
    logits: LogitSums


def forward(model: Forward, batch: Batch, device: torch.device) -> Tensor:
    """Logits [B, T, V] of a micro-batch; what the batch has not (positions, segments, samples) is not handed over."""
    extra = {"position_ids": batch.position_ids, "segments": batch.segments, "samples": batch.samples}
    given = {key: _tensor(value, device) for key, value in extra.items() if value is not None}
    return model(_tensor(batch.tokens, device).long(), **given)


def backward(
    model: Forward, batch: Batch, weights: NDArray[np.float32], spec: LossSpec, device: torch.device
) -> MicroLoss:
    """Adds the gradient of sum(weights[b] * token losses of sequence b) to the parameters' `.grad`.

    Parameters
    ----------
    weights : [B] float32, `denominators.Weights.token` of this micro-batch.

    Raises
    ------
    PretraceError
        If logits and labels do not fit each other.
    """
    logits = forward(model, batch, device)
    labels = _tensor(batch.labels, device).long()
    if logits.shape[:-1] != labels.shape:
        raise PretraceError(f"the model returned logits {tuple(logits.shape)} for labels {tuple(labels.shape)}", "",
                            "return [B, T, V]")  # fmt: skip
    _refuse_labels(batch, logits.shape[-1])
    rows = logits.reshape(-1, logits.shape[-1])
    rows = rows.float() if spec.logits_dtype == "float32" else rows
    targets = labels.reshape(-1)
    losses = cross_entropy(rows, targets, ignore_index=IGNORE_INDEX, reduction="none")
    per_token = torch.from_numpy(weights).to(device)[:, None].expand(labels.shape).reshape(-1)
    if spec.z_loss == 0:
        torch.autograd.backward(losses, per_token.to(losses.dtype))
        return _sums(rows.detach(), targets, losses.detach(), None, labels.shape)
    z = spec.z_loss * torch.logsumexp(rows, dim=-1).square()
    if spec.z_loss_on == "counted":
        z = z * (targets != IGNORE_INDEX)
    torch.autograd.backward([losses, z], [per_token.to(losses.dtype), per_token.to(z.dtype)])
    return _sums(rows.detach(), targets, losses.detach(), z.detach(), labels.shape)


def backward_by_rows(
    hidden: Forward,
    head: nn.Parameter,
    batch: Batch,
    weights: NDArray[np.float32],
    spec: LossSpec,
    device: torch.device,
    rows: int,
    kept: dict[str, Tensor] | None = None,
) -> MicroLoss:
    """As `backward`, with the logits of `rows` positions at a time.

    Parameters
    ----------
    hidden : gives the final hidden states [B, T, D].
    head : the output matrix [V, D].
    kept : buffers for the next call; the head's gradient may be one of them.
    """
    states = forward(hidden, batch, device)
    labels = _tensor(batch.labels, device).long()
    per_token = torch.from_numpy(weights).to(device)[:, None].expand(labels.shape).reshape(-1)
    given = states.detach().flatten(0, 1), head, labels.reshape(-1), per_token, spec, rows
    found = fused(*given, kept) if spec.z_loss == 0 and spec.logits_dtype == "float32" else plain(*given)
    states.backward(found.hidden_gradient.view(states.shape))  # type: ignore[no-untyped-call]
    return MicroLoss(_by_sequence(found.losses, labels.shape), _by_sequence(found.z_losses, labels.shape), found.logits)


def evaluate(model: Forward, batch: Batch, spec: LossSpec, device: torch.device) -> MicroLoss:
    """The same sums without a gradient."""
    with torch.no_grad():
        logits = forward(model, batch, device)
        rows = logits.reshape(-1, logits.shape[-1])
        rows = rows.float() if spec.logits_dtype == "float32" else rows
        targets = _tensor(batch.labels, device).long().reshape(-1)
        losses = cross_entropy(rows, targets, ignore_index=IGNORE_INDEX, reduction="none")
        return _sums(rows, targets, losses, None, torch.Size(batch.labels.shape))


def _refuse_labels(batch: Batch, vocabulary: int) -> None:
    """Every label is a row of the vocabulary or ignored."""
    labels = batch.labels
    low, high = int(labels.min()), int(labels.max())
    odd = high if high >= vocabulary else low
    if high >= vocabulary or (low < 0 and bool(((labels < 0) & (labels != IGNORE_INDEX)).any())):
        raise PretraceError(
            f"a label is {odd}, but the model has {vocabulary} logits a position",
            "labels",
            f"use ids below {vocabulary}, or {IGNORE_INDEX} for what the loss must not look at",
        )


def _sums(rows: Tensor, targets: Tensor, losses: Tensor, z: Tensor | None, shape: torch.Size) -> MicroLoss:
    # loss = log-sum-exp - logit of the target, so the log-sum-exp is there already
    lse = losses + rows.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return MicroLoss(_by_sequence(losses, shape), _by_sequence(z, shape), logit_sums(rows, targets, lse))


def _by_sequence(values: Tensor | None, shape: torch.Size) -> NDArray[np.float64]:
    if values is None:
        return np.zeros(shape[0])
    sums: NDArray[np.float64] = values.view(shape).double().sum(dim=1).cpu().numpy()
    return sums


def _tensor(array: NDArray[np.int64] | NDArray[np.int32], device: torch.device) -> Tensor:
    # arrays may be read-only views of a file; torch wants to be sure that nobody writes through it
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
