"""The decoder. Parameter names are the canonical names; one branch at the place where a switch acts.

Axes: B sequences, T positions, D width, H query heads, K key heads, d lanes of a head, V vocabulary.
The order of additions follows transformers' implementations where a family has one, so that logits agree to the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrace.model.spec import ModelSpec

Attention = Literal["eager", "sdpa"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


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

    def __init__(self, spec: ModelSpec, attention: Attention) -> None:
        super().__init__()
        self.spec, self.attention = spec, attention
        self.q = nn.Linear(spec.d_model, spec.d_model, bias=spec.bias)
        self.k = nn.Linear(spec.d_model, spec.d_kv, bias=spec.bias)
        self.v = nn.Linear(spec.d_model, spec.d_kv, bias=spec.bias)
        self.out = nn.Linear(spec.d_model, spec.d_model, bias=spec.bias)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, allowed: Tensor | None) -> Tensor:
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
        mixed = self._eager(q, k, v, allowed) if self.attention == "eager" else self._sdpa(q, k, v, allowed)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, -1))
        return out

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        p = self.spec.dropout.attention if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None, dropout_p=p)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        t = q.shape[-2]
        if allowed is None:
            allowed = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.spec.head_dim)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        return F.dropout(weights, self.spec.dropout.attention, self.training) @ v


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.d_model, spec.d_ff, bias=spec.bias)
        self.gate = nn.Linear(spec.d_model, spec.d_ff, bias=spec.bias) if spec.gated else None
        self.down = nn.Linear(spec.d_ff, spec.d_model, bias=spec.bias)
        self.activation = _ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        out: Tensor = self.down(hidden)
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward around the residual stream."""

    def __init__(self, spec: ModelSpec, attention: Attention) -> None:
        super().__init__()
        self.spec = spec
        self.norm1, self.attn = _norm(spec), SelfAttention(spec, attention)
        self.norm2, self.mlp = _norm(spec), FeedForward(spec)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, allowed: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        if self.spec.residual == "parallel":
            attended = self._drop(self.attn(self.norm1(x), rotary, allowed))
            return self._drop(self.mlp(self.norm2(x))) + attended + x
        if self.spec.norm_place == "post":
            x = self.norm1(x + self._drop(self.attn(x, rotary, allowed)))
            normed: Tensor = self.norm2(x + self._drop(self.mlp(x)))
            return normed
        x = self._drop(self.attn(self.norm1(x), rotary, allowed)) + x
        return x + self._drop(self.mlp(self.norm2(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.spec.dropout.residual, self.training)


class Decoder(nn.Module):
    """tokens [B, T] -> logits [B, T, V]. Build it, then `initialise` it or load a state: values start undefined."""

    def __init__(self, spec: ModelSpec, attention: Attention = "sdpa") -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.vocab_size, spec.d_model)
        self.pos_embed = nn.Embedding(spec.max_seq_len, spec.d_model) if spec.position == "learned" else None
        self.blocks = nn.ModuleList(Block(spec, attention) for _ in range(spec.n_layers))
        self.final_norm = _norm(spec) if spec.norm_place == "pre" else None
        self.head = None if spec.tied_head else nn.Linear(spec.d_model, spec.vocab_size, bias=False)

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits [B, T, V]. `segments` [B, T] keeps attention inside one document."""
        return self.logits(self.hidden(tokens, position_ids, segments))

    def hidden(self, tokens: Tensor, position_ids: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The final hidden states [B, T, D], before the head."""
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x: Tensor = self.embed(tokens)
        rotary = None
        if self.pos_embed is not None:
            x = x + self.pos_embed(position_ids)
        else:
            cos, sin = rotary_table(self.spec, position_ids)
            rotary = (cos.unsqueeze(1), sin.unsqueeze(1))
        x = F.dropout(x, self.spec.dropout.embed, self.training)
        allowed = None if segments is None else _within_segments(segments)
        for block in self.blocks:
            x = block(x, rotary, allowed)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [.., D] -> logits [.., V]."""
        return F.linear(hidden, self.embed.weight if self.head is None else self.head.weight)


def _within_segments(segments: Tensor) -> Tensor:
    t = segments.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool, device=segments.device).tril()
    return (causal & (segments.unsqueeze(2) == segments.unsqueeze(1))).unsqueeze(1)
