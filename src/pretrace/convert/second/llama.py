"""Llama: transformers pairs lane j with j + d/2, Meta's release (and llama2.c) 2j with 2j + 1.

Read from transformers 5.24 (models/llama) and llama2.c (export.py).
"""

from __future__ import annotations

from collections.abc import Callable

from pretrace.convert.second.arithmetic import Array, activation, attention, rms_norm, rotary_half, rotary_pairs
from pretrace.convert.second.reader import Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec

_META = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip


def _llama_like(s: Stored, spec: ModelSpec, x: Array, w: Callable[[str], Array], rotary: Callable[..., Array]) -> Array:
    b, t, _ = x.shape
    h1 = rms_norm(x, w("input_layernorm"), spec.norm_eps)
    q = (h1 @ w("self_attn.q_proj").T).reshape(b, t, spec.n_heads, spec.head_dim)
    k = (h1 @ w("self_attn.k_proj").T).reshape(b, t, spec.n_kv_heads, spec.head_dim)
    v = (h1 @ w("self_attn.v_proj").T).reshape(b, t, spec.n_kv_heads, spec.head_dim)
    q, k = rotary(q, spec.head_dim, spec.rotary_base), rotary(k, spec.head_dim, spec.rotary_base)
    x = x + attention(q, k, v, spec.head_dim**-0.5) @ w("self_attn.o_proj").T
    h2 = rms_norm(x, w("post_attention_layernorm"), spec.norm_eps)
    gate = activation(h2 @ w("mlp.gate_proj").T, spec.activation)
    return x + (gate * (h2 @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T


def _hf_llama_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = rms_norm(x, s("model.norm.weight"), spec.norm_eps)
    return h @ s("model.embed_tokens.weight" if spec.tied_head else "lm_head.weight").T


HF_LLAMA = Reader(
    "transformers' Llama",
    lambda s, spec, tokens: s.rows("model.embed_tokens.weight", tokens),
    lambda s, spec, i, x: _llama_like(s, spec, x, lambda n: s(f"model.layers.{i}.{n}.weight"), rotary_half),
    _hf_llama_logits,
)


def _meta_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = rms_norm(x, s("norm.weight"), spec.norm_eps)
    return h @ s("tok_embeddings.weight" if spec.tied_head else "output.weight").T


META_LLAMA = Reader(
    "Meta's Llama",
    lambda s, spec, tokens: s.rows("tok_embeddings.weight", tokens),
    lambda s, spec, i, x: _llama_like(s, spec, x, lambda n: s(f"layers.{i}.{_META[n]}.weight"), rotary_pairs),
    _meta_logits,
)
