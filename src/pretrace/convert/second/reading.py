"""Which framework a checkpoint's names belong to, and its logits by that framework's arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.convert.second.arithmetic import Array
from pretrace.convert.second.gpt2 import GPT2, LLMC, NANOGPT
from pretrace.convert.second.gpt3 import MAXTEXT_GPT3, PAXML
from pretrace.convert.second.gpt_neox import HF_NEOX, NEOX
from pretrace.convert.second.llama import HF_LLAMA, META_LLAMA
from pretrace.convert.second.maxtext_llama import MAXTEXT_LLAMA
from pretrace.convert.second.megatron import MEGATRON, MEGATRON_CORE
from pretrace.convert.second.reader import Reader
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec

# One name that only this framework has. GPT-2 is split from nanoGPT by the shape of its fused weight.
_MARKS = {
    "gpt_neox.embed_in.weight": HF_NEOX,
    "sequential.0.word_embeddings.weight": NEOX,
    "transformer.h.0.attn.c_attn.weight": GPT2,
    "model.embed_tokens.weight": HF_LLAMA,
    "tok_embeddings.weight": META_LLAMA,
    "softmax.logits_ffn.linear.w": PAXML,
    "decoder.position_embedder.embedding": MAXTEXT_GPT3,
    "token_embedder.embedding": MAXTEXT_LLAMA,
    "language_model.embedding.word_embeddings.weight": MEGATRON,
    "embedding.word_embeddings.weight": MEGATRON_CORE,
}


def reader_of(view: StateView) -> Reader | None:
    """The framework whose names these are, told by one name of each (and a shape for nanoGPT); None if none is known."""
    stored = Stored(view)
    for mark, reader in _MARKS.items():
        if mark in stored:
            if reader is GPT2 and stored.shape(mark)[0] != stored.shape("transformer.wte.weight")[1]:
                return LLMC if view.format == "llm.c" else NANOGPT
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
