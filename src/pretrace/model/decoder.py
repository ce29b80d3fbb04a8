"""The decoder. Parameter names are the canonical names; one branch at the place where a switch acts.

Axes: B sequences, T positions, D width, H query heads, K key heads, d lanes of a head, V vocabulary.
The order of additions follows transformers' implementations where a family has one, so that logits agree to the last bits.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrace.errors import PretraceError
from pretrace.model.dropout import Dropper
from pretrace.model.experts import Experts, FeedForward
from pretrace.model.spec import ModelSpec

Attention = Literal["eager", "sdpa"]


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the square mean in float32 (Llama)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis; keeps the dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def _norm(spec: ModelSpec) -> nn.Module:
    if spec.norm == "rmsnorm":
        return RMSNorm(spec.d_model, spec.norm_eps)
    return nn.LayerNorm(spec.d_model, spec.norm_eps)


def rotary_table(spec: ModelSpec, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [.., T, lanes] in float32 for the rotated lanes; the two halves carry the same angles.

    Angles are never computed below float32: positions beyond 256 cannot be told apart in bfloat16
    (huggingface/transformers#29285).
    """
    lanes = spec.rotary_lanes
    even = torch.arange(0, lanes, 2, dtype=torch.int64, device=position_ids.device).float()
    inverse = 1.0 / (spec.rotary_base ** (even / lanes))
    angles = position_ids.float().unsqueeze(-1) * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first lanes of every head in [B, H, T, d]; pairs are lane i and lane i + lanes/2 (half-split)."""
    lanes = cos.shape[-1]
    turned, rest = x[..., :lanes], x[..., lanes:]
    half = lanes // 2
    swapped = torch.cat((-turned[..., half:], turned[..., :half]), dim=-1)
    turned = turned * cos + swapped * sin
    return turned if not rest.shape[-1] else torch.cat((turned, rest), dim=-1)


class SelfAttention(nn.Module):
    """Causal attention; keys and values may have fewer heads than queries."""

    def __init__(self, spec: ModelSpec, attention: Attention, site: int) -> None:
        super().__init__()
        self.spec, self.attention, self.site = spec, attention, site
        self.q = nn.Linear(spec.d_model, spec.d_model, bias=spec.bias)
        self.k = nn.Linear(spec.d_model, spec.d_kv, bias=spec.bias)
        self.v = nn.Linear(spec.d_model, spec.d_kv, bias=spec.bias)
        self.out = nn.Linear(spec.d_model, spec.d_model, bias=spec.bias)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, allowed: Tensor | None, drop: Dropper | None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; `allowed` [B, 1, T, T] is true where a query may look, None for plain causal."""
        b, t, _ = x.shape
        d = self.spec.head_dim
        q = self.q(x).view(b, t, -1, d).transpose(1, 2)
        k = self.k(x).view(b, t, -1, d).transpose(1, 2)
        v = self.v(x).view(b, t, -1, d).transpose(1, 2)
        if rotary is not None:
            cos, sin = rotary[0].to(q.dtype), rotary[1].to(q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.spec.n_heads // self.spec.n_kv_heads
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        if self.attention == "eager":
            mixed = self._eager(q, k, v, allowed, drop)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, -1))
        return out

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, drop: Dropper | None) -> Tensor:
        t = q.shape[-2]
        if allowed is None:
            allowed = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.spec.head_dim)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        if drop is not None:
            weights = drop(weights, self.spec.dropout.attention, self.site)
        return weights @ v


class Block(nn.Module):
    """One layer: attention and feed-forward around the residual stream. It drops at the sites 3i + 1 to 3i + 3."""

    def __init__(self, spec: ModelSpec, attention: Attention, layer: int) -> None:
        super().__init__()
        self.spec, self.site = spec, 3 * layer + 1
        self.norm1, self.attn = _norm(spec), SelfAttention(spec, attention, self.site)
        self.norm2, self.mlp = _norm(spec), FeedForward(spec) if spec.moe is None else Experts(spec, spec.moe)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, allowed: Tensor | None, drop: Dropper | None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        if self.spec.residual == "parallel":
            attended = self._drop(self.attn(self.norm1(x), rotary, allowed, drop), drop, 1)
            return self._drop(self.mlp(self.norm2(x)), drop, 2) + attended + x
        if self.spec.norm_place == "post":
            x = self.norm1(x + self._drop(self.attn(x, rotary, allowed, drop), drop, 1))
            normed: Tensor = self.norm2(x + self._drop(self.mlp(x), drop, 2))
            return normed
        x = self._drop(self.attn(self.norm1(x), rotary, allowed, drop), drop, 1) + x
        return x + self._drop(self.mlp(self.norm2(x)), drop, 2)

    def _drop(self, x: Tensor, drop: Dropper | None, place: int) -> Tensor:
        return x if drop is None else drop(x, self.spec.dropout.residual, self.site + place)


class Decoder(nn.Module):
    """tokens [B, T] -> logits [B, T, V]. Build it, then `initialise` it or load a state: values start undefined.

    Parameters
    ----------
    seed : of the masks that dropout draws, together with every sample's position (`pretrace.model.dropout`).
    recompute : blocks keep their input only and are computed again in the backward pass: less memory, the same bits.
    """

    def __init__(
        self, spec: ModelSpec, attention: Attention = "sdpa", *, seed: int = 0, recompute: bool = False
    ) -> None:
        super().__init__()
        if spec.dropout.attention and attention != "eager":
            raise PretraceError("attention weights are dropped by sample in the eager attention only",
                                "step.kernels.attention", "declare eager, or attention dropout 0")  # fmt: skip
        self.spec, self.seed, self.recompute = spec, seed, recompute
        self.embed = nn.Embedding(spec.vocab_size, spec.d_model)
        self.pos_embed = nn.Embedding(spec.max_seq_len, spec.d_model) if spec.position == "learned" else None
        self.blocks = nn.ModuleList(Block(spec, attention, i) for i in range(spec.n_layers))
        self.final_norm = _norm(spec) if spec.norm_place == "pre" else None
        self.head = None if spec.tied_head else nn.Linear(spec.d_model, spec.vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segments: Tensor | None = None,
        samples: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V]. `segments` [B, T] keeps attention inside one document; `samples` [B] name dropout's masks."""
        return self.logits(self.hidden(tokens, position_ids, segments, samples))

    def hidden(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segments: Tensor | None = None,
        samples: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """The final hidden states [B, T, D], before the head.

        `allowed` [B, 1, T, T] is true where a query may look, for what segments cannot say (several continuations of one
        context); it stands in the place of `segments`.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        drop = self._dropper(samples)
        x: Tensor = self.embed(tokens)
        rotary = None
        if self.pos_embed is not None:
            x = x + self.pos_embed(position_ids)
        else:
            cos, sin = rotary_table(self.spec, position_ids)
            rotary = (cos.unsqueeze(1), sin.unsqueeze(1))
        x = x if drop is None else drop(x, self.spec.dropout.embed, 0)
        if segments is not None:
            allowed = _within_segments(segments)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                # Masks are drawn by sample and site, so no generator's state needs to be kept.
                x = checkpoint(block, x, rotary, allowed, drop, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, rotary, allowed, drop)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [.., D] -> logits [.., V]."""
        return F.linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> nn.Parameter:
        """The output matrix [V, D]: the embedding's where the head is tied."""
        found: nn.Parameter = self.embed.weight if self.head is None else self.head.weight  # type: ignore[assignment]
        return found

    @property
    def experts(self) -> tuple[Experts, ...]:
        """The mixtures of all blocks; empty in a dense model."""
        return tuple(block.mlp for block in self.blocks if isinstance(block.mlp, Experts))

    def weigh_router_losses(self, weight: float) -> None:
        """Says what a micro-batch's router losses count for in what its backward pass differentiates."""
        for mixture in self.experts:
            mixture.weight.fill_(weight / len(self.blocks))

    def _dropper(self, samples: Tensor | None) -> Dropper | None:
        if not self.training or not self.spec.dropout.active:
            return None
        if samples is None:
            raise PretraceError("dropout draws a mask for every sample, and the batch does not name its samples", "",
                                "hand over Batch.samples, or call eval()")  # fmt: skip
        return Dropper(self.seed, tuple(samples.tolist()))


def _within_segments(segments: Tensor) -> Tensor:
    t = segments.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool, device=segments.device).tril()
    return (causal & (segments.unsqueeze(2) == segments.unsqueeze(1))).unsqueeze(1)
