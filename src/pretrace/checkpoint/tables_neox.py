"""GPT-NeoX's own names (sequential layer numbers; block i is number i + 2).

Newer releases call the feed-forward linears linear1 and linear2; gated ones hold [up; gate] in linear1 and name norm weights
`scale`. With as many key heads as query heads the fused QKV goes head by head, with fewer it is [q; k; v].
Read from gpt-neox ea7aefd8 (megatron/model/transformer.py, tools/ckpts/convert_neox_to_hf.py); only the first table was held
against weights that GPT-NeoX trained.
"""

from __future__ import annotations

from pretrace.checkpoint.table import Ignored, Rename, Split, Table
from pretrace.checkpoint.tables_hf import pairs

_B = "sequential.{i+2}."


def _neox(name: str, *, linear1: bool, gated: bool, grouped: bool) -> Table:
    by = "blocks" if grouped else "head"
    up, down = ("linear1", "linear2") if linear1 else ("dense_h_to_4h", "dense_4h_to_h")
    norm = (lambda theirs, ours: (Rename(f"{theirs}.scale", f"{ours}.weight"),)) if gated else pairs
    feed = (
        (Split(f"{_B}mlp.{up}.weight", "blocks.{i}.mlp.{up,gate}.weight", by="halves"),)
        if gated
        else pairs(f"{_B}mlp.{up}", "blocks.{i}.mlp.up")
    )
    bias = () if gated else (Split(_B + "attention.query_key_value.bias", "blocks.{i}.attn.{q,k,v}.bias", by=by),)
    return Table(
        name=name,
        family="llama" if gated else "gpt_neox",
        grouped=grouped,
        equal=()
        if gated or not linear1
        else (("sequential.2.mlp.linear1.weight", 0, "sequential.2.mlp.linear2.weight", 1),),
        moves=(
            Rename("sequential.0.word_embeddings.weight", "embed.weight"),
            Rename("sequential.0.position_embeddings.weight", "pos_embed.weight", optional=True),
            *norm(_B + "input_layernorm", "blocks.{i}.norm1"),
            Split(_B + "attention.query_key_value.weight", "blocks.{i}.attn.{q,k,v}.weight", by=by),
            *bias,
            *pairs(_B + "attention.dense", "blocks.{i}.attn.out"),
            *norm(_B + "post_attention_layernorm", "blocks.{i}.norm2"),
            *feed,
            *pairs(f"{_B}mlp.{down}", "blocks.{i}.mlp.down"),
            *norm("sequential.{n+3}.norm", "final_norm"),
            Rename("sequential.{n+4}.final_linear.weight", "head.weight", optional=True),
        ),
        ignored=(
            Ignored(_B + "attention.rotary_emb.inv_freq", "rotary frequencies, computed from the base"),
            Ignored(_B + "attention.bias", "the causal mask"),
            Ignored(_B + "attention.masked_bias", "the value of masked scores"),
        ),
    )


NEOX = tuple(
    _neox(f"gpt-neox{names}{', grouped' * grouped}", linear1=bool(names), gated="gated" in names, grouped=grouped)
    for names in ("", ", linear1", ", linear1, gated")
    for grouped in (False, True)
)
