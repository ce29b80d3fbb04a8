"""GPT-NeoX's own names (sequential layer numbers; block i is number i + 2). Layouts as in the Hugging Face copy."""

from __future__ import annotations

from dataclasses import replace

from pretrace.checkpoint.table import Ignored, Rename, Split, Table
from pretrace.checkpoint.tables_hf import pairs

_B = "sequential.{i+2}."
NEOX = Table(
    name="gpt-neox",
    family="gpt_neox",
    moves=(
        Rename("sequential.0.word_embeddings.weight", "embed.weight"),
        Rename("sequential.0.position_embeddings.weight", "pos_embed.weight", optional=True),
        *pairs(_B + "input_layernorm", "blocks.{i}.norm1"),
        Split(_B + "attention.query_key_value.weight", "blocks.{i}.attn.{q,k,v}.weight", by="head"),
        Split(_B + "attention.query_key_value.bias", "blocks.{i}.attn.{q,k,v}.bias", by="head"),
        *pairs(_B + "attention.dense", "blocks.{i}.attn.out"),
        *pairs(_B + "post_attention_layernorm", "blocks.{i}.norm2"),
        *pairs(_B + "mlp.dense_h_to_4h", "blocks.{i}.mlp.up"),
        *pairs(_B + "mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
        *pairs("sequential.{n+3}.norm", "final_norm"),
        Rename("sequential.{n+4}.final_linear.weight", "head.weight", optional=True),
    ),
    ignored=(
        Ignored(_B + "attention.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
        Ignored(_B + "attention.bias", "the causal mask"),
        Ignored(_B + "attention.masked_bias", "the value of masked scores"),
    ),
)
# The same weights under the names of newer releases (mlp.linear1 for dense_h_to_4h).
NEOX_V2 = Table(
    name="gpt-neox (linear1)",
    family="gpt_neox",
    moves=tuple(
        replace(move, theirs=move.theirs.replace("dense_h_to_4h", "linear1").replace("dense_4h_to_h", "linear2"))
        for move in NEOX.moves
    ),
    ignored=NEOX.ignored,
)
