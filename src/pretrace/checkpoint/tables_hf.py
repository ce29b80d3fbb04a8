"""transformers' names and layouts of GPT-NeoX, GPT-2 and Llama.

Read from transformers 5.24 (`models/gpt_neox`, `models/gpt2`, `models/llama`) and checked against what it writes and loads.
Names are those of files: transformers 5 calls NeoX's head `lm_head` in memory and `embed_out` on the disk.
"""

from __future__ import annotations

from pretrace.checkpoint.table import Ignored, Move, Rename, Split, Table, Transpose


def pairs(theirs: str, ours: str) -> tuple[Move, ...]:
    """Weight and bias of the same linear or norm; the bias may be absent."""
    return (Rename(f"{theirs}.weight", f"{ours}.weight"), Rename(f"{theirs}.bias", f"{ours}.bias", optional=True))


def _conv1d(theirs: str, ours: str) -> tuple[Move, ...]:
    return (Transpose(f"{theirs}.weight", f"{ours}.weight"), Rename(f"{theirs}.bias", f"{ours}.bias"))


_NEOX = "gpt_neox.layers.{i}."
HF_GPT_NEOX = Table(
    name="hf gpt_neox",
    family="gpt_neox",
    moves=(
        Rename("gpt_neox.embed_in.weight", "embed.weight"),
        *pairs(_NEOX + "input_layernorm", "blocks.{i}.norm1"),
        Split(_NEOX + "attention.query_key_value.weight", "blocks.{i}.attn.{q,k,v}.weight", by="head"),
        Split(_NEOX + "attention.query_key_value.bias", "blocks.{i}.attn.{q,k,v}.bias", by="head"),
        *pairs(_NEOX + "attention.dense", "blocks.{i}.attn.out"),
        *pairs(_NEOX + "post_attention_layernorm", "blocks.{i}.norm2"),
        *pairs(_NEOX + "mlp.dense_h_to_4h", "blocks.{i}.mlp.up"),
        *pairs(_NEOX + "mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        *pairs("gpt_neox.final_layer_norm", "final_norm"),
        Rename("embed_out.weight", "head.weight", optional=True),
    ),
    ignored=(
        Ignored(_NEOX + "attention.bias", "the causal mask"),
        Ignored(_NEOX + "attention.masked_bias", "the value of masked scores"),
        Ignored(_NEOX + "attention.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
        Ignored("gpt_neox.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
    ),
)

_GPT2 = "transformer.h.{i}."
HF_GPT2 = Table(
    name="hf gpt2",
    family="gpt2",
    may_lack="transformer.",  # the original release has no prefix
    moves=(
        Rename("transformer.wte.weight", "embed.weight"),
        Rename("transformer.wpe.weight", "pos_embed.weight"),
        *pairs(_GPT2 + "ln_1", "blocks.{i}.norm1"),
        Split(_GPT2 + "attn.c_attn.weight", "blocks.{i}.attn.{q,k,v}.weight", by="blocks", transpose=True),
        Split(_GPT2 + "attn.c_attn.bias", "blocks.{i}.attn.{q,k,v}.bias", by="blocks"),
        *_conv1d(_GPT2 + "attn.c_proj", "blocks.{i}.attn.out"),
        *pairs(_GPT2 + "ln_2", "blocks.{i}.norm2"),
        *_conv1d(_GPT2 + "mlp.c_fc", "blocks.{i}.mlp.up"),
        *_conv1d(_GPT2 + "mlp.c_proj", "blocks.{i}.mlp.down"),
        *pairs("transformer.ln_f", "final_norm"),
        Rename("lm_head.weight", "head.weight", optional=True),
    ),
    ignored=(
        Ignored(_GPT2 + "attn.bias", "the causal mask"),
        Ignored(_GPT2 + "attn.masked_bias", "the value of masked scores"),
    ),
)

_LLAMA = "model.layers.{i}."
HF_LLAMA = Table(
    name="hf llama",
    family="llama",
    moves=(
        Rename("model.embed_tokens.weight", "embed.weight"),
        *pairs(_LLAMA + "input_layernorm", "blocks.{i}.norm1"),
        *pairs(_LLAMA + "self_attn.q_proj", "blocks.{i}.attn.q"),
        *pairs(_LLAMA + "self_attn.k_proj", "blocks.{i}.attn.k"),
        *pairs(_LLAMA + "self_attn.v_proj", "blocks.{i}.attn.v"),
        *pairs(_LLAMA + "self_attn.o_proj", "blocks.{i}.attn.out"),
        *pairs(_LLAMA + "post_attention_layernorm", "blocks.{i}.norm2"),
        *pairs(_LLAMA + "mlp.gate_proj", "blocks.{i}.mlp.gate"),
        *pairs(_LLAMA + "mlp.up_proj", "blocks.{i}.mlp.up"),
        *pairs(_LLAMA + "mlp.down_proj", "blocks.{i}.mlp.down"),
        *pairs("model.norm", "final_norm"),
        Rename("lm_head.weight", "head.weight", optional=True),
    ),
    ignored=(
        Ignored(_LLAMA + "self_attn.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
        Ignored("model.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
    ),
)
