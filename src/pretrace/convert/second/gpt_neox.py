"""GPT-NeoX twice: as transformers has it, and as GPT-NeoX itself has it.

Fused q, k, v head by head, rotary on the first lanes. Read from transformers 5.24 (models/gpt_neox) and gpt-neox ea7aefd8
(megatron/model/transformer.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pretrace.convert.second.arithmetic import Array, activation, attention, layer_norm, rms_norm, rotary_half
from pretrace.convert.second.reader import Heads, Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec


def _fused_by_head(x: Array, weight: Array, bias: Array, spec: ModelSpec) -> Heads:
    b, t, _ = x.shape
    fused = (x @ weight.T + bias).reshape(b, t, spec.n_heads, 3, spec.head_dim)
    return fused[:, :, :, 0], fused[:, :, :, 1], fused[:, :, :, 2]


def _hf_neox_block(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    at = f"gpt_neox.layers.{i}."
    h1 = layer_norm(x, s(at + "input_layernorm.weight"), s(at + "input_layernorm.bias"), spec.norm_eps)
    q, k, v = _fused_by_head(
        h1, s(at + "attention.query_key_value.weight"), s(at + "attention.query_key_value.bias"), spec
    )
    q, k = rotary_half(q, spec.rotary_lanes, spec.rotary_base), rotary_half(k, spec.rotary_lanes, spec.rotary_base)
    mixed = attention(q, k, v, spec.head_dim**-0.5)
    attended = mixed @ s(at + "attention.dense.weight").T + s(at + "attention.dense.bias")
    into = x if spec.residual == "parallel" else x + attended
    h2 = layer_norm(
        into, s(at + "post_attention_layernorm.weight"), s(at + "post_attention_layernorm.bias"), spec.norm_eps
    )
    wide = activation(h2 @ s(at + "mlp.dense_h_to_4h.weight").T + s(at + "mlp.dense_h_to_4h.bias"), spec.activation)
    return x + attended + wide @ s(at + "mlp.dense_4h_to_h.weight").T + s(at + "mlp.dense_4h_to_h.bias")


def _hf_neox_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = layer_norm(x, s("gpt_neox.final_layer_norm.weight"), s("gpt_neox.final_layer_norm.bias"), spec.norm_eps)
    return h @ s("gpt_neox.embed_in.weight" if spec.tied_head else "embed_out.weight").T


HF_NEOX = Reader(
    "transformers' GPT-NeoX",
    lambda s, spec, tokens: s.rows("gpt_neox.embed_in.weight", tokens),
    _hf_neox_block,
    _hf_neox_logits,
)


def _neox_norm(s: Stored, spec: ModelSpec, name: str, x: Array) -> Array:
    """RMSNorm calls its weight `scale` and has no bias (megatron/model/norms.py)."""
    if f"{name}.scale" in s:
        return rms_norm(x, s(f"{name}.scale"), spec.norm_eps)
    return layer_norm(x, s(f"{name}.weight"), s(f"{name}.bias"), spec.norm_eps)


def _neox_linear(s: Stored, name: str, x: Array) -> Array:
    made: Array = x @ s(f"{name}.weight").T
    return made + s(f"{name}.bias") if f"{name}.bias" in s else made


def _neox_heads(s: Stored, spec: ModelSpec, name: str, x: Array) -> Heads:
    """Head by head; with fewer key heads all queries, all keys, all values (gqa_project)."""
    b, t, _ = x.shape
    fused, d = _neox_linear(s, name, x), spec.head_dim
    if spec.n_kv_heads == spec.n_heads:
        apart = fused.reshape(b, t, spec.n_heads, 3, d)
        return apart[:, :, :, 0], apart[:, :, :, 1], apart[:, :, :, 2]
    q, k, v = np.split(fused, (spec.n_heads * d, (spec.n_heads + spec.n_kv_heads) * d), axis=-1)
    keys = (b, t, spec.n_kv_heads, d)
    return q.reshape(b, t, spec.n_heads, d), k.reshape(keys), v.reshape(keys)


def _neox_feed(s: Stored, spec: ModelSpec, at: str, x: Array) -> Array:
    old = at + "mlp.dense_h_to_4h.weight" in s
    up, down = ("dense_h_to_4h", "dense_4h_to_h") if old else ("linear1", "linear2")
    wide = _neox_linear(s, f"{at}mlp.{up}", x)
    if spec.gated:
        # "linear1" holds what is multiplied, then the gate (convert_neox_to_hf.py: up_proj, gate_proj).
        plain, gate = np.split(wide, 2, axis=-1)
        wide = activation(gate, spec.activation) * plain
    else:
        wide = activation(wide, spec.activation)
    return _neox_linear(s, f"{at}mlp.{down}", wide)


def _neox_block(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    at = f"sequential.{i + 2}."
    q, k, v = _neox_heads(s, spec, at + "attention.query_key_value", _neox_norm(s, spec, at + "input_layernorm", x))
    if spec.position == "rotary":
        q, k = rotary_half(q, spec.rotary_lanes, spec.rotary_base), rotary_half(k, spec.rotary_lanes, spec.rotary_base)
    attended = _neox_linear(s, at + "attention.dense", attention(q, k, v, spec.head_dim**-0.5))
    into = x if spec.residual == "parallel" else x + attended
    return x + attended + _neox_feed(s, spec, at, _neox_norm(s, spec, at + "post_attention_layernorm", into))


def _neox_embed(s: Stored, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
    x = s.rows("sequential.0.word_embeddings.weight", tokens)
    if spec.position == "rotary":
        return x
    return x + s.rows("sequential.0.position_embeddings.weight", np.arange(tokens.shape[1], dtype=np.int64))


def _neox_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    # 0 embedding, 1 a lambda, 2 .. L + 1 the blocks, L + 2 a lambda, then the norm and the head.
    head = f"sequential.{spec.n_layers + 4}.final_linear.weight"
    h = _neox_norm(s, spec, f"sequential.{spec.n_layers + 3}.norm", x)
    return h @ s("sequential.0.word_embeddings.weight" if spec.tied_head else head).T


NEOX = Reader(
    "GPT-NeoX",
    _neox_embed,
    _neox_block,
    _neox_logits,
)
