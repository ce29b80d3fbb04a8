"""Cross entropy by rows: the logits of a whole micro-batch are never held.

A vocabulary of 50,304 makes the logits of 2,048 positions 412 MB in float32, four times that with softmax and gradients. Here
the final hidden states are cut into runs of `rows`; each run's logits, losses and gradients are made and forgotten before the
next. The head's gradient is the sum over runs in order, which is why `rows` moves a bit and stands in the plan.

`plain` leaves the backward pass to autograd; `fused` makes it with the same kernels in kept buffers, to the same bits.

Axes: N positions (B x T), R rows of a run, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrace.batch import IGNORE_INDEX
from pretrace.step.loss_spec import LossSpec
from pretrace.step.telemetry import LogitSums, logit_sums


@dataclass(frozen=True, slots=True)
class RowLosses:
    """What the runs add up to."""

    losses: Tensor  # [N]
    z_losses: Tensor | None  # [N]
    hidden_gradient: Tensor  # [N, D], in the dtype of the hidden states
    logits: LogitSums


def plain(
    hidden: Tensor, weight: nn.Parameter, targets: Tensor, per_token: Tensor, spec: LossSpec, rows: int
) -> RowLosses:
    """The specification: autograd run by run; adds to `weight.grad`."""
    gradient, losses, zs, sums = torch.empty_like(hidden), [], [], LogitSums()
    for run in _runs(len(hidden), rows):
        part = hidden[run].detach().requires_grad_()
        logits = F.linear(part, weight)
        wide = logits.float() if spec.logits_dtype == "float32" else logits
        loss = F.cross_entropy(wide, targets[run], ignore_index=IGNORE_INDEX, reduction="none")
        roots, weights = [loss], [per_token[run].to(loss.dtype)]
        if spec.z_loss:
            z = spec.z_loss * torch.logsumexp(wide, dim=-1).square()
            z = z * (targets[run] != IGNORE_INDEX) if spec.z_loss_on == "counted" else z
            roots, weights = [loss, z], [*weights, per_token[run].to(z.dtype)]
            zs.append(z.detach())
        torch.autograd.backward(roots, weights)
        assert part.grad is not None
        gradient[run] = part.grad
        losses.append(loss.detach())
        sums += _sums(wide.detach(), targets[run], losses[-1])
    return RowLosses(torch.cat(losses), torch.cat(zs) if zs else None, gradient, sums)


@torch.no_grad()
def fused(
    hidden: Tensor, weight: nn.Parameter, targets: Tensor, per_token: Tensor, spec: LossSpec, rows: int
) -> RowLosses:
    """As `plain` without a z-loss and with float32 logits, in buffers that all runs share."""
    compute = _compute_dtype(hidden, weight)
    kept = _Buffers(min(rows, len(hidden)), weight.shape[0], compute, hidden.device)
    w, states = weight.detach().to(compute), hidden.to(compute)
    gradient, losses, sums = torch.empty_like(hidden), torch.empty(len(hidden), device=hidden.device), LogitSums()
    for run in _runs(len(hidden), rows):
        logits, log_p, one_hot = kept.of(run.stop - run.start)
        torch.mm(states[run], w.t(), out=logits)
        wide = logits if compute == torch.float32 else logits.float()
        torch.log_softmax(wide, -1, out=log_p)
        counted = targets[run] != IGNORE_INDEX
        column = targets[run].clamp(min=0)[:, None]
        losses[run] = -log_p.gather(1, column)[:, 0] * counted
        sums += _sums(wide, targets[run], losses[run])
        # Autograd's own formula for cross entropy: the gradient of the log-probabilities has one entry a row.
        one_hot.scatter_(1, column, (-(per_token[run] * counted))[:, None])
        back: Any = torch.ops.aten._log_softmax_backward_data.out
        back(one_hot, log_p, -1, torch.float32, out=wide)
        one_hot.scatter_(1, column, 0.0)
        grads = wide if compute == torch.float32 else wide.to(compute)
        gradient[run] = (grads @ w).to(hidden.dtype)
        _accumulate(weight, grads.t() @ states[run])
    return RowLosses(losses, None, gradient, sums)


def _sums(rows: Tensor, targets: Tensor, losses: Tensor) -> LogitSums:
    # loss = log-sum-exp - logit of the target, so the log-sum-exp is there already
    return logit_sums(rows, targets, losses + rows.gather(1, targets.clamp(min=0)[:, None])[:, 0])


def _accumulate(weight: nn.Parameter, gradient: Tensor) -> None:
    gradient = gradient.to(weight.dtype)
    if weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad.add_(gradient)


class _Buffers:
    """Logits, log-probabilities and the one-hot gradient of a run; the last run may be shorter."""

    def __init__(self, rows: int, vocabulary: int, compute: torch.dtype, device: torch.device) -> None:
        self._logits = torch.empty(rows, vocabulary, dtype=compute, device=device)
        self._log_p = torch.empty(rows, vocabulary, dtype=torch.float32, device=device)
        self._one_hot = torch.zeros(rows, vocabulary, dtype=torch.float32, device=device)

    def of(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        return self._logits[:n], self._log_p[:n], self._one_hot[:n]


def _compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _runs(n: int, rows: int) -> Iterator[slice]:
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))
