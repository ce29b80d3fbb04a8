"""What computes a packed batch: logits only where a label is counted, the vocabulary in slices.

Axes: B sequences, T positions, D width, V vocabulary, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pretrace.model.decoder import Decoder
from pretrace.score.answers import Scored
from pretrace.score.requests import PackedBatch, Request, allowed, batches, packed, packs
from pretrace.score.writing import greedy

# Columns of logits at a time: 1,024 rows of 4,096 float32 are 16 MiB, which stay in a processor's cache.
SLICE = 4096


class Network(Protocol):
    """A model, as far as scoring goes. `shares` says whether it can read packs of several branches."""

    shares: bool

    def answer(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Log-likelihood (float32) and likeliest (bool) of every label [N]."""

    def greedy(self, ids: Sequence[int]) -> Iterator[int]:
        """The likeliest token after `ids`, then after that one, without end; the first of equals."""


class DecoderNetwork:
    """Our decoder. Logits have the model's dtype; the softmax over them is taken in float32."""

    shares = True

    def __init__(self, model: Decoder) -> None:
        self._model = model.eval()

    @torch.inference_mode()
    def answer(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Log-likelihood (float32) and likeliest (bool) of every label [N]."""
        device = self._model.embed.weight.device
        tokens, labels = torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.labels).to(device)
        positions = None if batch.position_ids is None else torch.from_numpy(batch.position_ids).to(device)
        mask = None if batch.branch is None else torch.from_numpy(allowed(batch.branch)).to(device)
        hidden = self._model.hidden(tokens, positions, allowed=mask).flatten(0, 1)
        if batch.looked_at is not None:
            hidden = hidden[torch.from_numpy(batch.looked_at).to(device)]
        return sliced(hidden, self._model.head_weight, labels)

    def greedy(self, ids: Sequence[int]) -> Iterator[int]:
        """The likeliest token after `ids`, then after that one, without end; the first of equals."""
        return greedy(self._model, ids)


def plain(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The specification: log-likelihood and likeliest of labels [N] under logits [N, V], softmax in float32."""
    wide = logits.float().log_softmax(-1)
    return wide.gather(1, labels[:, None]).squeeze(1), logits.argmax(-1) == labels


def sliced(hidden: Tensor, weight: Tensor, labels: Tensor, columns: int = SLICE) -> tuple[Tensor, Tensor]:
    """As `plain` of hidden [N, D] @ weight [V, D].T, without ever holding N x V logits.

    The running maximum and sum of exponentials are rescaled from slice to slice (the online softmax).
    """
    n = len(labels)
    best = hidden.new_full((n,), -torch.inf, dtype=torch.float32)
    total, picked = best.new_zeros(n), best.new_zeros(n)
    since = labels.new_zeros(n)  # the slice in which the maximum came up first
    first = torch.zeros_like(labels, dtype=torch.bool)  # the label is the first of its slice's largest
    buffer = hidden.new_empty(n, min(columns, len(weight)))
    for start in range(0, len(weight), columns):
        part = weight[start : start + columns]
        out = buffer[:, : len(part)] if len(part) == buffer.shape[1] else None
        logits = torch.mm(hidden, part.t(), out=out).float()
        inside = (labels >= start) & (labels < start + len(part))
        own = logits.gather(1, (labels - start).clamp_(0, len(part) - 1)[:, None]).squeeze(1)
        top = logits.amax(1)
        # An argmax over all logits would cost more than the sum of their exponentials; few rows need one.
        rows = (inside & (own == top)).nonzero().squeeze(1)
        first[rows] = logits[rows].argmax(1) + start == labels[rows]
        picked = torch.where(inside, own, picked)
        since = torch.where(top > best, start, since)
        peak = torch.maximum(best, top)
        total = total * (best - peak).exp() + logits.sub_(peak[:, None]).exp_().sum(1)
        best = peak
    likeliest = first & (picked == best) & (labels >= since) & (labels < since + columns)
    return picked - best - total.log(), likeliest


def score(
    network: Network, requests: Sequence[Request], batch_tokens: int, *, share: bool = True
) -> Iterator[list[tuple[int, Scored]]]:
    """Scores all requests, longest first; yields after every batch which requests are done, and their answers."""
    planned = packs(requests, batch_tokens, share=share and network.shares)
    for batch in batches(planned, batch_tokens):
        arrays = packed(batch)
        logprobs, likeliest = (x.cpu().numpy() for x in network.answer(arrays))
        yield [(owner, Scored(logprobs[a:b].copy(), likeliest[a:b].copy())) for owner, a, b in arrays.parts]


def score_all(network: Network, requests: Sequence[Request], batch_tokens: int,
              done: Callable[[int], None] | None = None) -> list[Scored]:  # fmt: skip
    """The answers of all requests, in their order."""
    found: dict[int, Scored] = {}
    for answered in score(network, requests, batch_tokens):
        found.update(answered)
        if done is not None:
            done(len(found))
    return [found[i] for i in range(len(requests))]
