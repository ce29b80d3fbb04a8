"""The feed-forward of a block: one, or a mixture of experts with a router.

Axes: N tokens (B x T), D width, E experts, k experts a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrace.model.spec import ModelSpec, MoeSpec

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.d_model, spec.d_ff, bias=spec.bias)
        self.gate = nn.Linear(spec.d_model, spec.d_ff, bias=spec.bias) if spec.gated else None
        self.down = nn.Linear(spec.d_ff, spec.d_model, bias=spec.bias)
        self.activation = _ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[.., D] -> [.., D]."""
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        out: Tensor = self.down(hidden)
        return out


class Experts(nn.Module):
    """Every token through its `top_k` experts. The router's two losses join the gradient where the output is used."""

    weight: Tensor  # what this layer's router losses count for in the backward pass at hand; set before the forward

    def __init__(self, spec: ModelSpec, moe: MoeSpec) -> None:
        super().__init__()
        self.moe = moe
        self.router = nn.Linear(spec.d_model, moe.n_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(spec) for _ in range(moe.n_experts))
        self.register_buffer("weight", torch.zeros(()), persistent=False)
        self.losses = (
            float("nan"),
            float("nan"),
        )  # load balance and router z of the last micro-batch, without coefficients

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        tokens = x.flatten(0, 1)
        # The router is computed in float32: bfloat16 probabilities tie and flip (Switch Transformer, section 2.4).
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(tokens.float(), self.router.weight.float())
        probabilities = scores.softmax(dim=-1)
        share, chosen = probabilities.topk(self.moe.top_k, dim=-1)
        share = (share / share.sum(dim=-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            # An expert that no token chose still takes part, with no rows: its gradient is zero, not absent.
            part = expert(tokens[row]) * share[row, place].unsqueeze(-1)
            out = out.index_add(0, row, part.to(out.dtype))
        return self._with_losses(out, scores, probabilities, chosen).view_as(x)

    def _with_losses(self, out: Tensor, scores: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
        balance = load_balance(probabilities, chosen)
        z = scores.logsumexp(dim=-1).square().mean()
        self.losses = (float(balance.detach()), float(z.detach()))
        if not torch.is_grad_enabled():
            return out
        loss = self.moe.load_balance * balance + self.moe.router_z * z
        joined: Tensor = _Join.apply(out, loss, self.weight)  # type: ignore[no-untyped-call]
        return joined


def load_balance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """E sum_e f_e P_e: f_e the share of choices [N, k] that fell on expert e, P_e its mean probability; 1 when even."""
    n = probabilities.shape[-1]
    share = F.one_hot(chosen, n).float().mean(dim=(0, 1))
    return n * (share * probabilities.mean(dim=0)).sum()


class _Join(torch.autograd.Function):
    """Returns its first argument; the backward pass gives the second one the gradient `weight`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, loss: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grads[0], weight.clone(), None
