"""The three exact families with everything written out except the sizes."""

from __future__ import annotations

from pretrace.model.spec import DropoutSpec, InitSpec, ModelSpec

_NO_DROPOUT = DropoutSpec(embed=0.0, attention=0.0, residual=0.0)


def gpt2(*, vocab_size: int, max_seq_len: int, n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """GPT-2 as published (openai/gpt-2, transformers' GPT2Config), without dropout."""
    return ModelSpec(
        family="gpt2", vocab_size=vocab_size, max_seq_len=max_seq_len, n_layers=n_layers, d_model=d_model,
        n_heads=n_heads, n_kv_heads=n_heads, d_ff=4 * d_model, position="learned", rotary_pct=0.0, rotary_base=0.0,
        norm="layernorm", norm_eps=1e-5, norm_place="pre", residual="sequential", activation="gelu_tanh", gated=False,
        bias=True, tied_head=True, dropout=_NO_DROPOUT, init=InitSpec(kind="gpt2", std=0.02),
    )  # fmt: skip


def gpt_neox(*, vocab_size: int, max_seq_len: int, n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """GPT-NeoX as Pythia uses it (EleutherAI/pythia, models/*/pythia-*.yml): parallel residual, a quarter rotated."""
    return ModelSpec(
        family="gpt_neox", vocab_size=vocab_size, max_seq_len=max_seq_len, n_layers=n_layers, d_model=d_model,
        n_heads=n_heads, n_kv_heads=n_heads, d_ff=4 * d_model, position="rotary", rotary_pct=0.25, rotary_base=10000.0,
        norm="layernorm", norm_eps=1e-5, norm_place="pre", residual="parallel", activation="gelu", gated=False,
        bias=True, tied_head=False, dropout=_NO_DROPOUT, init=InitSpec(kind="neox", std=0.0),
    )  # fmt: skip


def llama(
    *, vocab_size: int, max_seq_len: int, n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int
) -> ModelSpec:
    """Llama (transformers' LlamaConfig): RMSNorm, SwiGLU, grouped queries."""
    return ModelSpec(
        family="llama", vocab_size=vocab_size, max_seq_len=max_seq_len, n_layers=n_layers, d_model=d_model,
        n_heads=n_heads, n_kv_heads=n_kv_heads, d_ff=d_ff, position="rotary", rotary_pct=1.0, rotary_base=10000.0,
        norm="rmsnorm", norm_eps=1e-5, norm_place="pre", residual="sequential", activation="silu", gated=True,
        bias=False, tied_head=False, dropout=_NO_DROPOUT, init=InitSpec(kind="normal", std=0.02),
    )  # fmt: skip
