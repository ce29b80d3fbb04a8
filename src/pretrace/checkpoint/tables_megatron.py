"""Megatron-LM: the legacy names (language_model.encoder) and Megatron-core's (decoder.layers, linear_qkv).

The fused QKV of legacy files lies by `checkpoint_version`: below 1 [3, H, d], 1 [H, d, 3], from 2 on [H, 3, d]. Megatron-core
groups queries before their key and value. Read from Megatron-LM d98e8a64 (tools/checkpoint, core/models/gpt).
"""

from __future__ import annotations

from dataclasses import replace

from pretrace.checkpoint.table import Move, Rename, Split, Table, has_block
from pretrace.checkpoint.tables_hf import pairs

_E = "language_model.encoder.layers.{i}."


def _legacy(name: str, by: str) -> Table:
    top = "language_model.embedding."
    return Table(
        name=name,
        family="gpt2",
        moves=(
            Rename(top + "word_embeddings.weight", "embed.weight"),
            Rename(top + "position_embeddings.weight", "pos_embed.weight", optional=True),
            *pairs(_E + "input_layernorm", "blocks.{i}.norm1"),
            Split(_E + "self_attention.query_key_value.weight", "blocks.{i}.attn.{q,k,v}.weight", by=by),
            Split(_E + "self_attention.query_key_value.bias", "blocks.{i}.attn.{q,k,v}.bias", by=by),
            *pairs(_E + "self_attention.dense", "blocks.{i}.attn.out"),
            *pairs(_E + "post_attention_layernorm", "blocks.{i}.norm2"),
            *pairs(_E + "mlp.dense_h_to_4h", "blocks.{i}.mlp.up"),
            *pairs(_E + "mlp.dense_4h_to_h", "blocks.{i}.mlp.down"),
            *pairs("language_model.encoder.final_layernorm", "final_norm"),
            Rename("language_model.output_layer.weight", "head.weight", optional=True),
        ),
    )


MEGATRON = _legacy("megatron", "head")
MEGATRON_V1 = _legacy("megatron, version 1", "head_last")
MEGATRON_V0 = _legacy("megatron, version 0", "blocks")

_C = "decoder.layers.{i}."


def _core(name: str, *, gated: bool, fused_norms: bool) -> Table:
    """`fused_norms`: TransformerEngine keeps a norm with the linear that follows it."""
    norm1, norm2 = (
        ("self_attention.linear_qkv.layer_norm_", "mlp.linear_fc1.layer_norm_")
        if fused_norms
        else ("input_layernorm.", "pre_mlp_layernorm.")
    )
    up = (
        (Split(_C + "mlp.linear_fc1.weight", "blocks.{i}.mlp.{gate,up}.weight", by="halves"),)
        if gated
        else pairs(_C + "mlp.linear_fc1", "blocks.{i}.mlp.up")
    )
    return Table(
        name=name,
        family="llama" if gated else "gpt2",
        equal=()
        if gated
        else (("decoder.layers.0.mlp.linear_fc1.weight", 0, "decoder.layers.0.mlp.linear_fc2.weight", 1),),
        moves=(
            Rename("embedding.word_embeddings.weight", "embed.weight"),
            Rename("embedding.position_embeddings.weight", "pos_embed.weight", optional=True),
            Rename(f"{_C}{norm1}weight", "blocks.{i}.norm1.weight"),
            Rename(f"{_C}{norm1}bias", "blocks.{i}.norm1.bias", optional=True),
            Split(_C + "self_attention.linear_qkv.weight", "blocks.{i}.attn.{q,k,v}.weight", by="head"),
            _optional(Split(_C + "self_attention.linear_qkv.bias", "blocks.{i}.attn.{q,k,v}.bias", by="head")),
            *pairs(_C + "self_attention.linear_proj", "blocks.{i}.attn.out"),
            Rename(f"{_C}{norm2}weight", "blocks.{i}.norm2.weight"),
            Rename(f"{_C}{norm2}bias", "blocks.{i}.norm2.bias", optional=True),
            *up,
            *pairs(_C + "mlp.linear_fc2", "blocks.{i}.mlp.down"),
            *pairs("decoder.final_layernorm", "final_norm"),
            Rename("output_layer.weight", "head.weight", optional=True),
        ),
    )


def _optional(move: Move) -> Move:
    return replace(move, optional=True)


def _stacked(table: Table) -> Table:
    """All layers in one tensor, the layer first, as Megatron-core's distributed checkpoints have them."""
    moves = []
    for move in table.moves:
        if has_block(move.theirs):
            flat = move.theirs.endswith(("bias", "norm_weight", "norm.weight"))
            axes = move.axes or ("o -> o" if flat else "o i -> o i")
            move = replace(move, theirs=move.theirs.replace("layers.{i}.", "layers."), axes="L " + axes)
        moves.append(move)
    equal = tuple(
        (a.replace("layers.0.", "layers."), i + 1, b.replace("layers.0.", "layers."), j + 1)
        for a, i, b, j in table.equal
    )
    return replace(table, name=table.name + ", stacked", moves=tuple(moves), equal=equal)


_CORE = tuple(
    _core("megatron-core" + ", gated" * gated + ", norms in linears" * fused, gated=gated, fused_norms=fused)
    for gated in (False, True)
    for fused in (False, True)
)
MEGATRON_CORE = _CORE + tuple(_stacked(table) for table in _CORE)
