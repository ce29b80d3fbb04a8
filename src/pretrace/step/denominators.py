"""Loss denominators as data: what each token's loss is multiplied by, for every rank and micro-step. No tensor here.

A denominator is nothing but a weight per token. Writing it so makes the five rules comparable (the weights stand in one
array), and lets one backward pass serve them all. The order of the divisions is the one of the trainers that have the
rule, in float32, because it decides the last bit.

Axes: R ranks, K micro-steps, B sequences of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.batch import IGNORE_INDEX, Batch
from pretrace.step.loss_spec import DENOMINATORS, Denominator, LossSpec

F32 = np.float32


@dataclass(frozen=True, slots=True)
class Counts:
    """Labels that the loss looks at, of all ranks of one update."""

    labels: NDArray[np.int64]  # [R, K, B] counted labels after the shift
    counted: NDArray[np.int64]  # [R, K, B] the same by the plan's rule (LossSpec.count)
    positions: int  # all positions of the update, counted or not


@dataclass(frozen=True, slots=True)
class Weights:
    """What turns token losses into the plan's gradient.

    token : [R, K, B] float32, factor of every counted token's loss in sequence b before the backward pass.
    rank_divisor : [R] the accumulated gradient of a rank is divided by this before the reduction.
    final_divisor : the reduced gradient is divided by this.
    """

    token: NDArray[np.float32]
    rank_divisor: NDArray[np.float64]
    final_divisor: float


def sequence_counts(batch: Batch) -> NDArray[np.int64]:
    """[B, 2]: counted labels of each sequence after the shift, and whether its first label is counted."""
    looked_at = batch.labels != IGNORE_INDEX
    first = looked_at[:, 0] if looked_at.shape[1] else np.zeros(len(looked_at), dtype=bool)
    return np.stack([looked_at.sum(axis=1), first], axis=1).astype(np.int64)


def counts_of(spec: LossSpec, table: NDArray[np.int64], positions: int) -> Counts:
    """The counts of an update from `sequence_counts` of all its micro-batches, [R, K, B, 2]."""
    labels = table[..., 0]
    return Counts(labels, labels + table[..., 1] if spec.count == "before_shift" else labels, positions)


def weigh(spec: LossSpec, counts: Counts, *, mean: bool, scale: float = 1.0) -> Weights:
    """The weights of one update.

    `mean` says that the reduction divides by the number of ranks (DDP, FSDP by default); else it sums (torchtitan) and the
    loss carries the division. `scale` is the loss scale, applied where autograd applies it: first.
    A micro-batch or sequence without counted labels weighs nothing, as its gradient in torch.

    >>> spec = LossSpec(denominator="global_tokens", count="after_shift", divide="loss", logits_dtype="float32",
    ...                 z_loss=0, z_loss_on="counted")
    >>> one_and_a_hundred = np.array([[[1], [100]]])  # one rank, two micro-steps
    >>> weigh(spec, Counts(one_and_a_hundred, one_and_a_hundred, 200), mean=True).token.ravel() * 101
    array([1., 1.], dtype=float32)
    """
    return Weights(
        *_early(spec, counts, mean, F32(scale)) if spec.divide == "loss" else _late(spec, counts, mean, F32(scale))
    )


def _early(
    spec: LossSpec, counts: Counts, mean: bool, scale: np.float32
) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    """Everything is divided in the loss."""
    n, shape = counts.counted, counts.labels.shape
    ranks, gas, _ = shape
    whole = F32(max(_total(spec.denominator, counts), 1))
    top = scale * F32(ranks) if mean else scale  # undoes the division of a reduction that takes the mean
    match spec.denominator:
        case "global_tokens" | "positions":
            token = np.full(shape, top / whole, dtype=F32)
        case "sequence_mean":
            token = _over(top / whole, counts.labels)
        case "micro_mean":
            top = scale / F32(gas if mean else gas * ranks)
            token = _over(top, np.broadcast_to(n.sum(axis=2, keepdims=True), shape))
        case "rank_step_tokens":
            top = scale if mean else scale / F32(ranks)
            token = _over(top, np.broadcast_to(n.sum(axis=(1, 2), keepdims=True), shape))
    return token, np.ones(ranks), 1.0


def _late(
    spec: LossSpec, counts: Counts, mean: bool, scale: np.float32
) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    """Only means inside a micro-batch are taken in the loss; the rest divides gradients."""
    n, shape = counts.counted, counts.labels.shape
    ranks, gas, _ = shape
    rank_divisor = np.ones(ranks)
    final = float(max(_total(spec.denominator, counts), 1)) / (ranks if mean else 1)
    token = np.full(shape, scale, dtype=F32)
    match spec.denominator:
        case "sequence_mean":
            token = _over(scale, counts.labels)
        case "micro_mean":
            token = _over(scale, np.broadcast_to(n.sum(axis=2, keepdims=True), shape))
            rank_divisor, final = (np.full(ranks, float(gas)), 1.0) if mean else (rank_divisor, float(gas * ranks))
        case "rank_step_tokens":
            rank_divisor, final = np.maximum(n.sum(axis=(1, 2)), 1).astype(float), 1.0 if mean else float(ranks)
        case _:
            pass
    return token, rank_divisor, final


def _over(top: np.float32, n: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.where(n > 0, F32(top) / np.maximum(n, 1).astype(F32), F32(0))


def _total(denominator: Denominator, counts: Counts) -> int:
    """What the whole update's sum is divided by, for the denominators that look at the whole update."""
    if denominator == "positions":
        return counts.positions
    if denominator == "sequence_mean":
        return int((counts.labels > 0).sum())
    return int(counts.counted.sum())


def losses_under_all(sums: NDArray[np.float64], counts: Counts) -> dict[Denominator, float]:
    """The loss of one update under each denominator, from the sums of token losses of its sequences [R, K, B].

    Empty micro-batches, ranks and sequences add 0 (and still count as one in `micro_mean` and `rank_step_tokens`).
    """
    n, labels = counts.counted, counts.labels
    ranks, gas, _ = labels.shape
    micro = _ratio(sums.sum(axis=2), n.sum(axis=2)).sum() / (ranks * gas)
    sequence = _ratio(sums, labels).sum() / max(_total("sequence_mean", counts), 1)
    rank = _ratio(sums.sum(axis=(1, 2)), n.sum(axis=(1, 2))).sum() / ranks
    token = sums.sum() / max(int(n.sum()), 1)
    position = sums.sum() / max(counts.positions, 1)
    return dict(zip(DENOMINATORS, map(float, (micro, sequence, rank, token, position))))


def _ratio(sums: NDArray[np.float64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    return sums / np.maximum(n, 1)
