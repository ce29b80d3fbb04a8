"""Log-likelihoods of labels under a decoder, and the held-out loss made of them.

Axes: B sequences, T positions, V vocabulary. Softmax is taken in float32 over logits of the model's dtype; sums are float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretrace.batch import IGNORE_INDEX, Batch
from pretrace.checkpoint.view import StateView
from pretrace.model.decoder import Attention, Decoder
from pretrace.model.spec import DropoutSpec, ModelSpec
from pretrace.model.state import load

# Rows of logits that are widened to float32 at a time: 2,048 rows of a vocabulary of 50,304 take 412 MB.
_ROWS = 2048
_NOTHING_DROPPED = DropoutSpec(embed=0.0, attention=0.0, residual=0.0)


def decoder_of(view: StateView, spec: ModelSpec, attention: Attention = "sdpa") -> Decoder:
    """The decoder in evaluation mode with the float32 values of a state in canonical names. It drops nothing."""
    model = Decoder(spec.model_copy(update={"dropout": _NOTHING_DROPPED}), attention)
    load(model, view)
    return model.eval()


@torch.no_grad()
def log_likelihoods(model: Decoder, batch: Batch) -> NDArray[np.float32]:
    """Log-likelihood in nats of every label [B, T]; 0 where the label is ignored."""
    device = next(model.parameters()).device
    tokens = torch.from_numpy(batch.tokens).to(device)
    positions = None if batch.position_ids is None else torch.from_numpy(batch.position_ids).to(device)
    segments = None if batch.segments is None else torch.from_numpy(batch.segments).to(device)
    hidden = model.hidden(tokens, positions, segments).flatten(0, 1)
    labels = torch.from_numpy(batch.labels).to(device).flatten()
    parts = [_rows(model, hidden[i : i + _ROWS], labels[i : i + _ROWS]) for i in range(0, len(labels), _ROWS)]
    out: NDArray[np.float32] = torch.cat(parts).view(batch.labels.shape).cpu().numpy()
    return out


def _rows(model: Decoder, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = model.logits(hidden).float()
    return -F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Mean loss in nats over all counted labels of a text."""

    nats_per_token: float
    n_tokens: int


def held_out_loss(model: Decoder, batches: Iterable[Batch]) -> HeldOutLoss:
    """Mean loss over the counted labels of all batches (global_tokens), summed in float64.

    The model's training mode is kept as it was.
    """
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in batches:
        total -= float(log_likelihoods(model, batch).astype(np.float64).sum())
        count += batch.n_counted
    model.train(was_training)
    return HeldOutLoss(total / count if count else float("nan"), count)
