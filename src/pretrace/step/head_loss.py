"""Cross entropy by rows: the logits of a whole micro-batch are never held.

A vocabulary of 50,304 makes the logits of 2,048 positions 412 MB in float32, four times that with softmax and gradients. Here
the final hidden states are cut into runs of `rows`; each run's logits, losses and gradients are made and forgotten before the
next. The head's gradient is the sum over runs in order, which is why `rows` moves a bit and stands in the plan.

`plain` leaves the backward pass to autograd; `fused` makes it with the same kernels in the place of the logits, to the same bits.

Axes: N positions (B x T), R rows of a run, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrace.batch import IGNORE_INDEX
from pretrace.step.loss_spec import LossSpec
from pretrace.step.telemetry import LogitSums, RowFigures, logit_sums


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
    hidden: Tensor,
    weight: nn.Parameter,
    targets: Tensor,
    per_token: Tensor,
    spec: LossSpec,
    rows: int,
    kept: dict[str, Tensor] | None = None,
) -> RowLosses:
    """As `plain` without a z-loss and with float32 logits: one pass over a run's logits, strip by strip, in kept buffers.

    Parameters
    ----------
    kept : buffers from one call to the next; after a call `weight.grad` may be one of them.
    """
    compute = _compute_dtype(hidden, weight)
    room = _Buffers({} if kept is None else kept, hidden.device)
    w, states = room.cast("head", weight.detach(), compute), hidden.to(compute)
    gradient, losses, sums = torch.empty_like(hidden), torch.empty(len(hidden), device=hidden.device), LogitSums()
    for run in _runs(len(hidden), rows):
        logits = torch.mm(states[run], w.t(), out=room.of("logits", (run.stop - run.start, len(w)), compute))
        found = _strips(logits, targets[run], per_token[run], room)
        losses[run] = found.losses
        sums += found.sums(targets[run], len(w))
        gradient[run] = (logits @ w).to(hidden.dtype)
        _accumulate(weight, logits.t(), states[run], room)
    return RowLosses(losses, None, gradient, sums)


def _strips(logits: Tensor, targets: Tensor, per_token: Tensor, room: _Buffers) -> RowFigures:
    """Turns the logits of a run into their gradient, in place; a strip stays in the cache from its first pass to its last."""
    found = RowFigures.empty(len(logits), logits.device)
    for strip in _runs(len(logits), _strip_rows(logits)):
        shape = logits[strip].shape
        wide = logits[strip] if logits.dtype == torch.float32 else room.of("wide", shape).copy_(logits[strip])
        log_p, one_hot = room.of("log_p", shape), room.zeros("one_hot", shape)
        torch.log_softmax(wide, -1, out=log_p)
        counted = targets[strip] != IGNORE_INDEX
        column = targets[strip].clamp(min=0)[:, None]
        loss = -log_p.gather(1, column)[:, 0] * counted
        # loss = log-sum-exp - logit of the target, so the log-sum-exp is there already
        found.enter(strip, wide, loss, loss + wide.gather(1, column)[:, 0])
        # Autograd's own formula for cross entropy: the gradient of the log-probabilities has one entry a row.
        one_hot.scatter_(1, column, (-(per_token[strip] * counted))[:, None])
        back: Any = torch.ops.aten._log_softmax_backward_data.out
        back(one_hot, log_p, -1, torch.float32, out=wide)
        one_hot.scatter_(1, column, 0.0)
        if logits.dtype != torch.float32:
            logits[strip].copy_(wide)
    return found


def _strip_rows(logits: Tensor) -> int:
    """Rows of about a million logits: four megabytes, which a CPU's caches hold; a GPU takes the whole run."""
    return max(1, (1 << 20) // logits.shape[1]) if logits.device.type == "cpu" else len(logits)


def _sums(rows: Tensor, targets: Tensor, losses: Tensor) -> LogitSums:
    # loss = log-sum-exp - logit of the target, so the log-sum-exp is there already
    return logit_sums(rows, targets, losses + rows.gather(1, targets.clamp(min=0)[:, None])[:, 0])


def _accumulate(weight: nn.Parameter, grads: Tensor, states: Tensor, room: _Buffers) -> None:
    """weight.grad += grads @ states, rounded to the dtype of each in turn."""
    if weight.grad is None:
        weight.grad = room.of("head_gradient", weight.shape, weight.dtype)
        if states.dtype == weight.dtype:
            torch.mm(grads, states, out=weight.grad)
        else:
            weight.grad.copy_(torch.mm(grads, states, out=room.of("product", weight.shape, states.dtype)))
    else:
        weight.grad.add_(torch.mm(grads, states, out=room.of("product", weight.shape, states.dtype)))


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Buffers by name, made when first asked for: pages of fresh memory cost a CPU as much as what is done with them."""

    held: dict[str, Tensor]
    device: torch.device

    def of(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of this shape, with any content: the beginning of the buffer called `name`."""
        return self._of(name, shape, dtype, torch.empty)

    def zeros(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same of zeros; who writes into it cleans up."""
        return self._of(name, shape, torch.float32, torch.zeros)

    def cast(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """`tensor` in another dtype; itself where it has that one."""
        return tensor if tensor.dtype == dtype else self.of(name, tensor.shape, dtype).copy_(tensor)

    def _of(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[..., Tensor]) -> Tensor:
        numel, found = math.prod(shape), self.held.get(f"loss.{name}")
        if found is None or found.numel() < numel or found.dtype != dtype:
            found = self.held[f"loss.{name}"] = make(numel, dtype=dtype, device=self.device)
        return found[:numel].view(shape)


def _compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _runs(n: int, rows: int) -> Iterator[slice]:
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))
