"""Megatron-LM: the legacy model (language_model.encoder) and Megatron-core's GPT (decoder.layers, linear_qkv).

A legacy fused q, k, v is [H, 3, d] from checkpoint_version 2 on, [H, d, 3] in 1 and [3, H, d] before. Megatron-core groups the
queries of each key head before it; its gated feed-forward holds gate, then up. Core may keep a norm with the linear after it,
and all layers in one tensor. Read from Megatron-LM d98e8a64 (core/transformer/attention.py, mlp.py; legacy/model/transformer.py,
legacy/checkpointing.py, fix_query_key_value_ordering).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pretrace.convert.second.arithmetic import Array, activation, attention, layer_norm, rms_norm, rotary_half
from pretrace.convert.second.reader import Heads, Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec

_LAYERS = "language_model.encoder.layers"
# Megatron-core's names of what the legacy model calls otherwise.
_CORE_NAMES = {
    "self_attention.query_key_value": "self_attention.linear_qkv", "self_attention.dense": "self_attention.linear_proj",
    "post_attention_layernorm": "pre_mlp_layernorm", "mlp.dense_h_to_4h": "mlp.linear_fc1",
    "mlp.dense_4h_to_h": "mlp.linear_fc2",
}  # fmt: skip
_WITH_LINEAR = {
    "input_layernorm": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm": "mlp.linear_fc1.layer_norm_",
}

Tensor = Callable[[str], Array | None]  # a tensor of one block by its legacy name; None if there is none


def _legacy_tensor(s: Stored, i: int) -> Tensor:
    return lambda name: s(f"{_LAYERS}.{i}.{name}") if f"{_LAYERS}.{i}.{name}" in s else None


def _core_tensor(s: Stored, i: int) -> Tensor:
    def find(name: str) -> Array | None:
        module, _, kind = name.rpartition(".")
        core = _CORE_NAMES.get(module, module)
        for ours in (f"{core}.{kind}", f"{_WITH_LINEAR.get(core, core + '.')}{kind}"):
            if f"decoder.layers.{i}.{ours}" in s:
                return s(f"decoder.layers.{i}.{ours}")
            if f"decoder.layers.{ours}" in s:
                return s.slice(f"decoder.layers.{ours}", 0, i)
        return None

    return find


def _linear(w: Tensor, name: str, x: Array) -> Array:
    weight, bias = w(f"{name}.weight"), w(f"{name}.bias")
    assert weight is not None, name
    made: Array = x @ weight.T
    return made if bias is None else made + bias


def _norm(weight: Array | None, bias: Array | None, spec: ModelSpec, x: Array) -> Array:
    assert weight is not None
    return rms_norm(x, weight, spec.norm_eps) if bias is None else layer_norm(x, weight, bias, spec.norm_eps)


def _legacy_heads(fused: Array, version: float, spec: ModelSpec) -> Heads:
    b, t, _ = fused.shape
    h, d = spec.n_heads, spec.head_dim
    if version >= 2:
        apart = np.moveaxis(fused.reshape(b, t, h, 3, d), 3, 0)
    elif version >= 1:
        apart = np.moveaxis(fused.reshape(b, t, h, d, 3), 4, 0)
    else:
        apart = np.moveaxis(fused.reshape(b, t, 3, h, d), 2, 0)
    return apart[0], apart[1], apart[2]


def _core_heads(fused: Array, spec: ModelSpec) -> Heads:
    b, t, _ = fused.shape
    groups, d = spec.n_kv_heads, spec.head_dim
    queries = spec.n_heads // groups
    apart = fused.reshape(b, t, groups, queries + 2, d)
    return apart[:, :, :, :queries].reshape(b, t, spec.n_heads, d), apart[:, :, :, queries], apart[:, :, :, queries + 1]


def _block(w: Tensor, heads: Callable[[Array], Heads], spec: ModelSpec, x: Array) -> Array:
    def norm(name: str, h: Array) -> Array:
        return _norm(w(f"{name}.weight"), w(f"{name}.bias"), spec, h)

    q, k, v = heads(_linear(w, "self_attention.query_key_value", norm("input_layernorm", x)))
    if spec.position == "rotary":
        q, k = rotary_half(q, spec.rotary_lanes, spec.rotary_base), rotary_half(k, spec.rotary_lanes, spec.rotary_base)
    x = x + _linear(w, "self_attention.dense", attention(q, k, v, spec.head_dim**-0.5))
    wide = _linear(w, "mlp.dense_h_to_4h", norm("post_attention_layernorm", x))
    if spec.gated:
        gate, up = np.split(wide, 2, axis=-1)
        wide = activation(gate, spec.activation) * up
    else:
        wide = activation(wide, spec.activation)
    return x + _linear(w, "mlp.dense_4h_to_h", wide)


def _legacy_block(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    version = float(s.said("checkpoint_version", 0.0))
    return _block(_legacy_tensor(s, i), lambda fused: _legacy_heads(fused, version, spec), spec, x)


def _core_block(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    return _block(_core_tensor(s, i), lambda fused: _core_heads(fused, spec), spec, x)


def _embed(top: str) -> Callable[[Stored, ModelSpec, NDArray[np.int64]], Array]:
    def embed(s: Stored, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
        x = s.rows(f"{top}.word_embeddings.weight", tokens)
        if spec.position == "rotary":
            return x
        return x + s.rows(f"{top}.position_embeddings.weight", np.arange(tokens.shape[1], dtype=np.int64))

    return embed


def _logits(embedding: str, norm: str, head: str) -> Callable[[Stored, ModelSpec, Array], Array]:
    def logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
        bias = s(f"{norm}.bias") if f"{norm}.bias" in s else None
        return _norm(s(f"{norm}.weight"), bias, spec, x) @ s(embedding if spec.tied_head else head).T

    return logits


MEGATRON = Reader(
    "Megatron-LM",
    _embed("language_model.embedding"),
    _legacy_block,
    _logits("language_model.embedding.word_embeddings.weight", "language_model.encoder.final_layernorm",
            "language_model.output_layer.weight"),
)  # fmt: skip
MEGATRON_CORE = Reader(
    "Megatron-core",
    _embed("embedding"),
    _core_block,
    _logits("embedding.word_embeddings.weight", "decoder.final_layernorm", "output_layer.weight"),
)
