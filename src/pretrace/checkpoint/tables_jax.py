"""MaxText and Paxml: stacked or separate layers, [in, out] kernels with heads apart.

MaxText stacks layers (scan_layers) along an axis of its choice, 1 by default; for Llama it divides the query kernel by
sqrt(head_dim) and pairs rotary lanes 2i, 2i+1. GPT-3's norms multiply by 1 + scale, in MaxText as in Paxml.
Read from MaxText e591f30c (layers/gpt3.py, layers/llama2.py, convert_gpt3_ckpt_from_paxml.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pretrace.checkpoint.table import Move, Rename, Table

_ONE = "norm scale + 1"
_PAIRS = "rotary pairs interleaved -> half-split"
# Below `decoder.layers.` of one layer: their name, ours, axes without the stack, what else.
Row = tuple[str, str, str, dict[str, Any]]
_SPLIT = {"along": "n", "words": "split in blocks"}
_GPT3_QKV: dict[str, tuple[Row, ...]] = {
    "gpt3": (
        ("self_attention.qkv_proj.kernel", "attn.{q,k,v}.weight", "i n h d -> (n h d) i", _SPLIT),
        ("self_attention.qkv_proj.bias", "attn.{q,k,v}.bias", "n h d -> (n h d)", _SPLIT),
    ),
    "gpt3 apart": (
        ("self_attention.query.kernel", "attn.q.weight", "i h d -> (h d) i", {}),
        ("self_attention.query.bias", "attn.q.bias", "h d -> (h d)", {}),
        ("self_attention.key.kernel", "attn.k.weight", "i h d -> (h d) i", {}),
        ("self_attention.key.bias", "attn.k.bias", "h d -> (h d)", {}),
        ("self_attention.value.kernel", "attn.v.weight", "i h d -> (h d) i", {}),
        ("self_attention.value.bias", "attn.v.bias", "h d -> (h d)", {}),
    ),
}
_GPT3: tuple[Row, ...] = (
    ("pre_self_attention_norm.scale", "norm1.weight", "D -> D", {"plus": 1.0, "words": _ONE}),
    ("pre_self_attention_norm.bias", "norm1.bias", "D -> D", {}),
    ("self_attention.out.kernel", "attn.out.weight", "h d o -> o (h d)", {}),
    ("self_attention.out.bias", "attn.out.bias", "o -> o", {}),
    ("mlp.mlp_layer_norm.scale", "norm2.weight", "D -> D", {"plus": 1.0, "words": _ONE}),
    ("mlp.mlp_layer_norm.bias", "norm2.bias", "D -> D", {}),
    ("mlp.wi.kernel", "mlp.up.weight", "i f -> f i", {}),
    ("mlp.wi.bias", "mlp.up.bias", "f -> f", {}),
    ("mlp.wo.kernel", "mlp.down.weight", "f o -> o f", {}),
    ("mlp.wo.bias", "mlp.down.bias", "o -> o", {}),
)
_LLAMA: tuple[Row, ...] = (
    ("pre_self_attention_layer_norm.scale", "norm1.weight", "D -> D", {}),
    (
        "self_attention.query.kernel",
        "attn.q.weight",
        "i h ~d -> (h d) i",
        {"scale": "sqrt_head_dim", "words": "query times sqrt(head_dim), " + _PAIRS},
    ),
    ("self_attention.key.kernel", "attn.k.weight", "i g ~d -> (g d) i", {"words": _PAIRS}),
    ("self_attention.value.kernel", "attn.v.weight", "i g d -> (g d) i", {}),
    ("self_attention.out.kernel", "attn.out.weight", "h d o -> o (h d)", {}),
    ("post_self_attention_layer_norm.scale", "norm2.weight", "D -> D", {}),
    ("mlp.wi_0.kernel", "mlp.gate.weight", "i f -> f i", {}),
    ("mlp.wi_1.kernel", "mlp.up.weight", "i f -> f i", {}),
    ("mlp.wo.kernel", "mlp.down.weight", "f o -> o f", {}),
)
_TOP_GPT3 = (
    Rename("token_embedder.embedding", "embed.weight"),
    Rename("decoder.position_embedder.embedding", "pos_embed.weight"),
    Move("decoder.decoder_norm.scale", "final_norm.weight", "D -> D", words=_ONE, plus=1.0),
    Rename("decoder.decoder_norm.bias", "final_norm.bias"),
    Move("decoder.logits_dense.kernel", "head.weight", "i o -> o i", optional=True),
)
_TOP_LLAMA = (
    Rename("token_embedder.embedding", "embed.weight"),
    Rename("decoder.decoder_norm.scale", "final_norm.weight"),
    Move("decoder.logits_dense.kernel", "head.weight", "i o -> o i", optional=True),
)


def _maxtext(kind: str, scan_axis: int | None) -> Table:
    """The tables of one architecture; `scan_axis` None: layers apart, as `layers_0`, `layers_1` ..."""
    llama = kind == "llama"
    layer = _LLAMA if llama else _GPT3 + _GPT3_QKV[kind]
    top = _TOP_LLAMA if llama else _TOP_GPT3
    where = "decoder.layers_{i}." if scan_axis is None else "decoder.layers."
    moves = tuple(
        Move(where + theirs, "blocks.{i}." + ours, axes if scan_axis is None else _stacked(axes, scan_axis), **more)
        for theirs, ours, axes, more in layer
    )
    name = f"maxtext {kind}" + (" unscanned" if scan_axis is None else f" scanned on axis {scan_axis}")
    return Table(
        name,
        "llama" if llama else "gpt2",
        tuple(map(_told, (*top, *moves))),
        equal=() if scan_axis is None else _stack_signs(kind, where, scan_axis),
        before=("params.params.", "params.", ""),
    )


def _stack_signs(kind: str, where: str, axis: int) -> tuple[tuple[str, int, str, int], ...]:
    """Sizes that are equal only if layers are stacked on this axis: the model's width, the MLP's, the heads.

    One alone is silent where a model has as many layers as that size (maxtext#4344).
    """
    llama = kind == "llama"
    norm = "pre_self_attention_layer_norm.scale" if llama else "pre_self_attention_norm.scale"
    up = "mlp.wi_0.kernel" if llama else "mlp.wi.kernel"
    heads = ("self_attention.qkv_proj.kernel", 3) if kind == "gpt3" else ("self_attention.query.kernel", 2)
    return (
        (where + norm, 1 - axis, "decoder.decoder_norm.scale", 0),
        (where + "mlp.wo.kernel", 1 - axis, where + up, 2),
        (where + "self_attention.out.kernel", 1 - axis, where + heads[0], heads[1]),
    )


def _told(move: Move) -> Move:
    """The move with all that it does in its words."""
    theirs = move.axes.split(" -> ")[0].split()
    kernel = {"i", "o"} & set(theirs) and len(set(theirs) - {"L"}) > 1 and "transpose" not in move.words
    words = ("a layer of the stack" if "L" in theirs else "", move.words, "transpose" if kernel else "")
    return replace(move, words=", ".join(word for word in words if word))


def _stacked(axes: str, axis: int) -> str:
    theirs, _, ours = axes.partition(" -> ")
    names = theirs.split(" ")
    names.insert(min(axis, len(names)), "L")
    return " ".join(names) + " -> " + ours


MAXTEXT = tuple(_maxtext(kind, axis) for kind in ("llama", "gpt3", "gpt3 apart") for axis in (1, 0, None))

_X = "transformer.repeat.sub.x_layers_0."
PAXML = Table(
    name="paxml gpt3",
    family="gpt2",
    before=("mdl_vars.params.lm.", "state.mdl_vars.params.lm."),
    moves=tuple(
        map(
            _told,
            (
                Move(
                    "softmax.logits_ffn.linear.w",
                    "embed.weight",
                    "i o -> o i",
                    words="transpose (the embedding is tied to it)",
                ),
                Rename("position_emb.emb_var", "pos_embed.weight"),
                Move(_X + "layer_norm.scale", "blocks.{i}.norm1.weight", "L D -> D", words=_ONE, plus=1.0),
                Move(_X + "layer_norm.bias", "blocks.{i}.norm1.bias", "L D -> D"),
                Move(
                    _X + "self_attention.combined_qkv.w",
                    "blocks.{i}.attn.{q,k,v}.weight",
                    "L n i h d -> (n h d) i",
                    "n",
                    "split in blocks",
                ),
                Move(
                    _X + "self_attention.combined_qkv.b",
                    "blocks.{i}.attn.{q,k,v}.bias",
                    "L n h d -> (n h d)",
                    "n",
                    "split in blocks",
                ),
                Move(_X + "self_attention.post.w", "blocks.{i}.attn.out.weight", "L o h d -> o (h d)"),
                Move(_X + "self_attention.post.b", "blocks.{i}.attn.out.bias", "L o -> o"),
                Move(_X + "ff_layer.layer_norm.scale", "blocks.{i}.norm2.weight", "L D -> D", words=_ONE, plus=1.0),
                Move(_X + "ff_layer.layer_norm.bias", "blocks.{i}.norm2.bias", "L D -> D"),
                Move(_X + "ff_layer.ffn_layer1.linear.w", "blocks.{i}.mlp.up.weight", "L i f -> f i"),
                Move(_X + "ff_layer.ffn_layer1.bias.b", "blocks.{i}.mlp.up.bias", "L f -> f"),
                Move(_X + "ff_layer.ffn_layer2.linear.w", "blocks.{i}.mlp.down.weight", "L f o -> o f"),
                Move(_X + "ff_layer.ffn_layer2.bias.b", "blocks.{i}.mlp.down.bias", "L o -> o"),
                Move("final_ln.scale", "final_norm.weight", "D -> D", words=_ONE, plus=1.0),
                Rename("final_ln.bias", "final_norm.bias"),
            ),
        )
    ),
)
