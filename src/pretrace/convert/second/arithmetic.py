"""The arithmetic of a decoder in plain numpy float64: the slow version that shares no line with `pretrace.model`.

Axes: B sequences, T positions, D width, H query heads, G key heads, d lanes of a head.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    made: Array = (x - mean) / np.sqrt(variance + eps) * weight + bias
    return made


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean square + eps) * weight over the last axis."""
    made: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return made


def angles(positions: int, lanes: int, base: float) -> Array:
    """[T, lanes / 2]: position times base^(-2j / lanes)."""
    return np.arange(positions)[:, None] * base ** (-2.0 * np.arange(lanes // 2) / lanes)


def rotary_half(x: Array, lanes: int, base: float) -> Array:
    """Rotates lane j with lane j + lanes/2 of the first `lanes` lanes; x is [B, T, H, d]."""
    turn = angles(x.shape[1], lanes, base)[None, :, None, :]
    a, b, rest = x[..., : lanes // 2], x[..., lanes // 2 : lanes], x[..., lanes:]
    return np.concatenate((a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn), rest), axis=-1)


def rotary_pairs(x: Array, lanes: int, base: float) -> Array:
    """Rotates lane 2j with lane 2j + 1; x is [B, T, H, d]."""
    turn = angles(x.shape[1], lanes, base)[None, :, None, :]
    a, b = x[..., 0:lanes:2], x[..., 1:lanes:2]
    made = x.copy()
    made[..., 0:lanes:2] = a * np.cos(turn) - b * np.sin(turn)
    made[..., 1:lanes:2] = b * np.cos(turn) + a * np.sin(turn)
    return made


def attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Causal attention of q [B, T, H, d] on k, v [B, T, G, d]; heads joined again: [B, T, H * d]."""
    b, t, heads, d = q.shape
    k, v = (np.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * scale
    scores = np.where(np.tril(np.ones((t, t), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    made: Array = np.einsum("bhij,bjhd->bihd", weights, v).reshape(b, t, heads * d)
    return made


def activation(x: Array, name: str) -> Array:
    """gelu (exact), gelu_tanh, relu, silu."""
    if name == "gelu":
        return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))
    if name == "gelu_tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    if name == "relu":
        return np.asarray(np.maximum(x, 0.0))
    assert name == "silu"
    return np.asarray(x / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def log_softmax(logits: Array) -> Array:
    """Over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    made: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return made
