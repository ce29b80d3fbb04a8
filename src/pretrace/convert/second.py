"""A second reading of a checkpoint: every published layout run in its own framework's arithmetic, in plain numpy float64.

A fault in a name-and-layout table is the same fault on the way there and on the way back, so reading back proves nothing
about the table. What proves it is an implementation that never looks at our tables: each reader below takes the stored
tensors by the names and shapes of its framework and computes as that framework's model code does. It is slow and short on
purpose; weights are read layer by layer.

Axes: B sequences, T positions, D width, H query heads, G key heads, d lanes of a head, F feed-forward, V vocabulary.
Read from transformers 5.24 (gpt_neox, gpt2, llama), gpt-neox ea7aefd8 (megatron/model/transformer.py), MaxText e591f30c
(models/gpt3.py, llama2.py, convert_gpt3_ckpt_from_paxml.py), nanoGPT (model.py), llama2.c (export.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.convert.arithmetic import (
    Array,
    activation,
    attention,
    layer_norm,
    rms_norm,
    rotary_half,
    rotary_pairs,
)
from pretrace.convert.stored import Stored
from pretrace.model.spec import ModelSpec

Heads = tuple[Array, Array, Array]  # q [B, T, H, d], k and v [B, T, G, d]


@dataclass(frozen=True)
class Reader:
    """One framework: how it embeds, runs block `i`, and makes logits."""

    name: str
    embed: Callable[[Stored, ModelSpec, NDArray[np.int64]], Array]
    block: Callable[[Stored, ModelSpec, int, Array], Array]
    logits: Callable[[Stored, ModelSpec, Array], Array]


def reader_of(view: StateView) -> Reader | None:
    """The framework whose names these are, told by one name of each (and a shape for nanoGPT); None if none is known."""
    stored = Stored(view)
    for mark, reader in _MARKS.items():
        if mark in stored:
            if reader is _GPT2 and stored.shape(mark)[0] != stored.shape("transformer.wte.weight")[1]:
                return _NANOGPT
            return reader
    return None


def second_logits(view: StateView, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
    """Logits float64 [B, T, V] of `tokens` [B, T], computed by the framework that the names belong to."""
    reader = reader_of(view)
    assert reader is not None
    stored = Stored(view, spec.n_layers)
    x = reader.embed(stored, spec, tokens)
    for i in range(spec.n_layers):
        x = reader.block(stored, spec, i, x)
    return reader.logits(stored, spec, x)


# transformers' GPT-NeoX and GPT-NeoX itself: fused q, k, v head by head, rotary on the first lanes.


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


_HF_NEOX = Reader(
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


_NEOX = Reader(
    "GPT-NeoX",
    _neox_embed,
    _neox_block,
    _neox_logits,
)

# GPT-2: transformers' Conv1D multiplies by [in, out], nanoGPT's (and llm.c's) Linear by [out, in] transposed.


def _gpt2_like(s: Stored, spec: ModelSpec, i: int, x: Array, *, conv1d: bool) -> Array:
    at = f"transformer.h.{i}."

    def linear(h: Array, name: str) -> Array:
        weight = s(f"{at}{name}.weight")
        return h @ (weight if conv1d else weight.T) + s(f"{at}{name}.bias")

    b, t, _ = x.shape
    h1 = layer_norm(x, s(at + "ln_1.weight"), s(at + "ln_1.bias"), spec.norm_eps)
    q, k, v = np.split(linear(h1, "attn.c_attn"), 3, axis=-1)
    heads = (b, t, spec.n_heads, spec.head_dim)
    mixed = attention(q.reshape(heads), k.reshape(heads), v.reshape(heads), spec.head_dim**-0.5)
    x = x + linear(mixed, "attn.c_proj")
    h2 = layer_norm(x, s(at + "ln_2.weight"), s(at + "ln_2.bias"), spec.norm_eps)
    return x + linear(activation(linear(h2, "mlp.c_fc"), spec.activation), "mlp.c_proj")


def _gpt2_embed(s: Stored, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
    places = np.arange(tokens.shape[1], dtype=np.int64)
    return s.rows("transformer.wte.weight", tokens) + s.rows("transformer.wpe.weight", places)


def _gpt2_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = layer_norm(x, s("transformer.ln_f.weight"), s("transformer.ln_f.bias"), spec.norm_eps)
    return h @ s("transformer.wte.weight" if spec.tied_head else "lm_head.weight").T


_GPT2 = Reader("transformers' GPT-2", _gpt2_embed, lambda s, m, i, x: _gpt2_like(s, m, i, x, conv1d=True), _gpt2_logits)
_NANOGPT = Reader(
    "nanoGPT and llm.c", _gpt2_embed, lambda s, m, i, x: _gpt2_like(s, m, i, x, conv1d=False), _gpt2_logits
)

# Llama: transformers pairs lane j with j + d/2, Meta's release (and llama2.c) 2j with 2j + 1.

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


_HF_LLAMA = Reader(
    "transformers' Llama",
    lambda s, spec, tokens: s.rows("model.embed_tokens.weight", tokens),
    lambda s, spec, i, x: _llama_like(s, spec, x, lambda n: s(f"model.layers.{i}.{n}.weight"), rotary_half),
    _hf_llama_logits,
)


def _meta_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = rms_norm(x, s("norm.weight"), spec.norm_eps)
    return h @ s("tok_embeddings.weight" if spec.tied_head else "output.weight").T


_META_LLAMA = Reader(
    "Meta's Llama",
    lambda s, spec, tokens: s.rows("tok_embeddings.weight", tokens),
    lambda s, spec, i, x: _llama_like(s, spec, x, lambda n: s(f"layers.{i}.{_META[n]}.weight"), rotary_pairs),
    _meta_logits,
)

# MaxText and Paxml: kernels [in, ...] with heads apart. Llama's query is stored divided by sqrt(d) and scores are not
# scaled; GPT-3 scales the query and multiplies norms by 1 + scale.


def _maxtext_llama(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    def w(name: str) -> Array:
        return s.layer(f"decoder.layers.{name}", i)

    h1 = rms_norm(x, w("pre_self_attention_layer_norm.scale"), spec.norm_eps)
    q = rotary_pairs(np.einsum("btD,Dhd->bthd", h1, w("self_attention.query.kernel")), spec.head_dim, spec.rotary_base)
    k = rotary_pairs(np.einsum("btD,Dhd->bthd", h1, w("self_attention.key.kernel")), spec.head_dim, spec.rotary_base)
    v = np.einsum("btD,Dhd->bthd", h1, w("self_attention.value.kernel"))
    mixed = attention(q, k, v, 1.0).reshape(*x.shape[:2], spec.n_heads, spec.head_dim)
    x = x + np.einsum("bthd,hdD->btD", mixed, w("self_attention.out.kernel"))
    h2 = rms_norm(x, w("post_self_attention_layer_norm.scale"), spec.norm_eps)
    gate = activation(h2 @ w("mlp.wi_0.kernel"), spec.activation)
    return x + (gate * (h2 @ w("mlp.wi_1.kernel"))) @ w("mlp.wo.kernel")


def _maxtext_llama_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = rms_norm(x, s("decoder.decoder_norm.scale"), spec.norm_eps)
    return h @ s("token_embedder.embedding").T if spec.tied_head else h @ s("decoder.logits_dense.kernel")


_MAXTEXT_LLAMA = Reader(
    "MaxText's Llama",
    lambda s, spec, tokens: s.rows("token_embedder.embedding", tokens),
    _maxtext_llama,
    _maxtext_llama_logits,
)


def _gpt3_block(x: Array, w: Callable[[str], Array], qkv: Callable[[Array], Heads], out: str, spec: ModelSpec) -> Array:
    """`w` reads a layer's tensor by MaxText's name; `out` is the einsum of the output projection."""
    h1 = layer_norm(x, 1 + w("pre_self_attention_norm.scale"), w("pre_self_attention_norm.bias"), spec.norm_eps)
    q, k, v = qkv(h1)
    mixed = attention(q, k, v, spec.head_dim**-0.5).reshape(*x.shape[:2], spec.n_heads, spec.head_dim)
    x = x + np.einsum(out, mixed, w("self_attention.out.kernel")) + w("self_attention.out.bias")
    h2 = layer_norm(x, 1 + w("mlp.mlp_layer_norm.scale"), w("mlp.mlp_layer_norm.bias"), spec.norm_eps)
    wide = activation(h2 @ w("mlp.wi.kernel") + w("mlp.wi.bias"), spec.activation)
    return x + wide @ w("mlp.wo.kernel") + w("mlp.wo.bias")


def _maxtext_gpt3(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    def w(name: str) -> Array:
        return s.layer(f"decoder.layers.{name}", i)

    def fused(h: Array) -> Heads:
        made = np.einsum("btD,Dnhd->btnhd", h, w("self_attention.qkv_proj.kernel")) + w("self_attention.qkv_proj.bias")
        return made[:, :, 0], made[:, :, 1], made[:, :, 2]

    def apart(h: Array) -> Heads:
        q, k, v = (
            np.einsum("btD,Dhd->bthd", h, w(f"self_attention.{n}.kernel")) + w(f"self_attention.{n}.bias")
            for n in ("query", "key", "value")
        )
        return q, k, v

    is_fused = s.has_layer("decoder.layers.self_attention.qkv_proj.kernel")
    return _gpt3_block(x, w, fused if is_fused else apart, "bthd,hdD->btD", spec)


def _maxtext_gpt3_embed(s: Stored, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
    places = np.arange(tokens.shape[1], dtype=np.int64)
    return s.rows("token_embedder.embedding", tokens) + s.rows("decoder.position_embedder.embedding", places)


def _maxtext_gpt3_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = layer_norm(x, 1 + s("decoder.decoder_norm.scale"), s("decoder.decoder_norm.bias"), spec.norm_eps)
    return h @ s("token_embedder.embedding").T if spec.tied_head else h @ s("decoder.logits_dense.kernel")


_MAXTEXT_GPT3 = Reader("MaxText's GPT-3", _maxtext_gpt3_embed, _maxtext_gpt3, _maxtext_gpt3_logits)

_PAXML_NAMES = {
    "pre_self_attention_norm.scale": "layer_norm.scale", "pre_self_attention_norm.bias": "layer_norm.bias",
    "self_attention.out.kernel": "self_attention.post.w", "self_attention.out.bias": "self_attention.post.b",
    "mlp.mlp_layer_norm.scale": "ff_layer.layer_norm.scale", "mlp.mlp_layer_norm.bias": "ff_layer.layer_norm.bias",
    "mlp.wi.kernel": "ff_layer.ffn_layer1.linear.w", "mlp.wi.bias": "ff_layer.ffn_layer1.bias.b",
    "mlp.wo.kernel": "ff_layer.ffn_layer2.linear.w", "mlp.wo.bias": "ff_layer.ffn_layer2.bias.b",
}  # fmt: skip


def _paxml_block(s: Stored, spec: ModelSpec, i: int, x: Array) -> Array:
    at = "transformer.repeat.sub.x_layers_0."

    def qkv(h: Array) -> Heads:
        weight, bias = (
            s.layer(at + "self_attention.combined_qkv.w", i),
            s.layer(at + "self_attention.combined_qkv.b", i),
        )
        made = np.einsum("btD,nDhd->btnhd", h, weight) + bias
        return made[:, :, 0], made[:, :, 1], made[:, :, 2]

    return _gpt3_block(x, lambda name: s.layer(at + _PAXML_NAMES[name], i), qkv, "bthd,Dhd->btD", spec)


def _paxml_embed(s: Stored, spec: ModelSpec, tokens: NDArray[np.int64]) -> Array:
    places = np.arange(tokens.shape[1], dtype=np.int64)
    table = s("softmax.logits_ffn.linear.w").T
    return table[tokens] + s.rows("position_emb.emb_var", places)


def _paxml_logits(s: Stored, spec: ModelSpec, x: Array) -> Array:
    h = layer_norm(x, 1 + s("final_ln.scale"), s("final_ln.bias"), spec.norm_eps)
    return h @ s("softmax.logits_ffn.linear.w")


_PAXML = Reader("Paxml's GPT-3", _paxml_embed, _paxml_block, _paxml_logits)

# One name that only this framework has. GPT-2 is split from nanoGPT by the shape of its fused weight.
_MARKS = {
    "gpt_neox.embed_in.weight": _HF_NEOX,
    "sequential.0.word_embeddings.weight": _NEOX,
    "transformer.h.0.attn.c_attn.weight": _GPT2,
    "model.embed_tokens.weight": _HF_LLAMA,
    "tok_embeddings.weight": _META_LLAMA,
    "softmax.logits_ffn.linear.w": _PAXML,
    "decoder.position_embedder.embedding": _MAXTEXT_GPT3,
    "token_embedder.embedding": _MAXTEXT_LLAMA,
}
