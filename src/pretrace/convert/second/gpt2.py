"""GPT-2: transformers' Conv1D multiplies by [in, out], nanoGPT's (and llm.c's) Linear by [out, in] transposed.

Read from transformers 5.24 (models/gpt2) and nanoGPT 3adf61e (model.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pretrace.convert.second.arithmetic import Array, activation, attention, layer_norm
from pretrace.convert.second.reader import Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec


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


GPT2 = Reader("transformers' GPT-2", _gpt2_embed, lambda s, m, i, x: _gpt2_like(s, m, i, x, conv1d=True), _gpt2_logits)
NANOGPT = Reader("nanoGPT", _gpt2_embed, lambda s, m, i, x: _gpt2_like(s, m, i, x, conv1d=False), _gpt2_logits)
LLMC = replace(NANOGPT, name="llm.c")
