"""MaxText's Llama: kernels [in, heads, lanes], interleaved rotary, the query stored divided by sqrt(d), scores not scaled.

Read from MaxText e591f30c (models/llama2.py).
"""

from __future__ import annotations

import numpy as np

from pretrace.convert.second.arithmetic import Array, activation, attention, rms_norm, rotary_pairs
from pretrace.convert.second.reader import Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec


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


MAXTEXT_LLAMA = Reader(
    "MaxText's Llama",
    lambda s, spec, tokens: s.rows("token_embedder.embedding", tokens),
    _maxtext_llama,
    _maxtext_llama_logits,
)
