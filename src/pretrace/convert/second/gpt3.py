"""GPT-3 style decoders of MaxText and Paxml: the query is scaled, norms multiply by 1 + scale, q, k and v fused or apart.

Read from MaxText e591f30c (models/gpt3.py, convert_gpt3_ckpt_from_paxml.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pretrace.convert.second.arithmetic import Array, activation, attention, layer_norm
from pretrace.convert.second.reader import Heads, Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec


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


MAXTEXT_GPT3 = Reader("MaxText's GPT-3", _maxtext_gpt3_embed, _maxtext_gpt3, _maxtext_gpt3_logits)

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


PAXML = Reader("Paxml's GPT-3", _paxml_embed, _paxml_block, _paxml_logits)
