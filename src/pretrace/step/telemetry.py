"""What a step shows of itself: statistics of the logits and norms, from sums that micro-batches and ranks can add up.

The loss does not see everything: softmax ignores a constant added to all logits of a position, so a mean that wanders, and
log-sum-exp with it, is invisible there (allenai/OLMo#514). These figures are for the log. They never feed the update, and
their sums over positions are in fp64, so they do not depend on the topology beyond about 1e-7.

Axes: N positions, V vocabulary rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrace.batch import IGNORE_INDEX


@dataclass(frozen=True, slots=True)
class LogitStats:
    """Over counted positions: mean and root mean square of all logits, their largest magnitude, mean log-sum-exp (nats)."""

    mean: float
    rms: float
    max: float
    lse: float


@dataclass(frozen=True, slots=True)
class LogitSums:
    """Sums that add up over micro-batches and ranks; `stats` makes the figures of the log."""

    positions: int = 0
    elements: int = 0
    total: float = 0.0
    squares: float = 0.0
    max: float = 0.0
    lse: float = 0.0

    def __add__(self, other: LogitSums) -> LogitSums:
        # NaN must survive: max(nan, x) depends on the order of its arguments in Python.
        largest = math.nan if math.isnan(self.max + other.max) else max(self.max, other.max)
        return LogitSums(
            self.positions + other.positions, self.elements + other.elements, self.total + other.total,
            self.squares + other.squares, largest, self.lse + other.lse,
        )  # fmt: skip

    @property
    def stats(self) -> LogitStats | None:
        """The figures of the log; None where no position was counted."""
        if not self.positions:
            return None
        n = self.elements
        return LogitStats(self.total / n, math.sqrt(self.squares / n), self.max, self.lse / self.positions)


@torch.no_grad()
def logit_sums(logits: Tensor, labels: Tensor, lse: Tensor | None = None) -> LogitSums:
    """The sums of one micro-batch.

    Parameters
    ----------
    logits : [.., V] of any float dtype.
    labels : [..] int64; positions with `IGNORE_INDEX` are left out.
    lse : [..] log-sum-exp of the positions, where the loss has it already.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    counted = labels.reshape(-1) != IGNORE_INDEX
    if not bool(counted.all()):
        rows = rows[counted]
        lse = None if lse is None else lse.reshape(-1)[counted]
    if not rows.shape[0]:
        return LogitSums()
    rows = rows.float()
    low, high = torch.aminmax(rows)
    lse = torch.logsumexp(rows, dim=-1) if lse is None else lse
    return LogitSums(
        positions=rows.shape[0],
        elements=rows.numel(),
        total=float(rows.sum(-1).double().sum()),
        squares=float(torch.linalg.vector_norm(rows, dim=-1).double().square().sum()),
        max=float(torch.maximum(-low, high)),
        lse=float(lse.double().sum()),
    )


@dataclass(frozen=True, slots=True)
class RowFigures:
    """What `logit_sums` needs of every position, filled strip by strip while the logits are at hand."""

    losses: Tensor  # [N]
    lse: Tensor  # [N]
    totals: Tensor  # [N]
    norms: Tensor  # [N]
    lows: Tensor  # [N]
    highs: Tensor  # [N]

    @classmethod
    def empty(cls, n: int, device: torch.device) -> RowFigures:
        """Room for `n` positions."""
        return cls(*torch.empty(6, n, device=device))

    def enter(self, strip: slice, rows: Tensor, losses: Tensor, lse: Tensor) -> None:
        """Enters the float32 logits [R, V] of the positions of `strip`."""
        self.losses[strip], self.lse[strip] = losses, lse
        self.totals[strip], self.norms[strip] = rows.sum(-1), torch.linalg.vector_norm(rows, dim=-1)
        self.lows[strip], self.highs[strip] = rows.amin(-1), rows.amax(-1)

    def sums(self, labels: Tensor, vocabulary: int) -> LogitSums:
        """The sums over the counted positions, those of `logit_sums`."""
        counted = labels != IGNORE_INDEX
        n = int(counted.sum())
        if not n:
            return LogitSums()
        return LogitSums(
            positions=n,
            elements=n * vocabulary,
            total=float(self.totals[counted].double().sum()),
            squares=float(self.norms[counted].double().square().sum()),
            max=float(torch.maximum(-self.lows[counted], self.highs[counted]).max()),
            lse=float(self.lse[counted].double().sum()),
        )


@torch.no_grad()
def norm(tensors: Iterable[Tensor]) -> float:
    """The L2 norm over all elements of `tensors`: each tensor in its dtype, the sum over tensors in fp64."""
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(t.float())) ** 2 for t in tensors))


@torch.no_grad()
def update_norm(before: Iterable[Tensor], after: Iterable[Tensor]) -> float:
    """The L2 norm of what an update added to the parameters."""
    return norm(new - old for old, new in zip(before, after, strict=True))


@torch.no_grad()
def head_leak(head_gradient: Tensor) -> float:
    """|1'G| / |G| of the output head's gradient G [V, D]: its part along the direction that the loss cannot see.

    Exactly 0 for the exact gradient of an untied head without z-loss; rounding in a reduction makes it 1e-7 (fp32) to
    0.2 (bf16 ring over 512 ranks). With a tied head the embedding's gradient is in it as well, and it means nothing.
    """
    wide = head_gradient.double()
    whole = float(wide.norm())
    return float(wide.sum(0).norm()) / whole if whole else 0.0
