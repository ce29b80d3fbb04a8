"""How the tensors of tensor-parallel ranks make whole ones, by the end of their names.

Column-parallel weights are cut along their output axis, row-parallel ones along their input axis, the rest are replicas. The
bias of a row-parallel linear is special in GPT-NeoX. With `gpt_j_residual` every rank adds its own bias before the
all-reduce: the true bias is the sum. Without it the bias is added once, after: all ranks hold the same one.
(Read from gpt-neox ea7aefd8, megatron/model/transformer.py; both published converters sum always.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pretrace.checkpoint.links import Link, box, c_strides, normal
from pretrace.checkpoint.rewired import Wired
from pretrace.checkpoint.view import TensorInfo

Rule = Literal["column", "halves", "thirds", "row", "row_bias", "replica"]

_RULES: tuple[tuple[str, Rule], ...] = (
    (r"(.*\.)?(query_key_value|qkv|linear_qkv)\.(weight|bias)", "column"),
    (r"(.*\.)?(dense_h_to_4h|linear1|linear_fc1|w1|w3)\.(weight|bias)", "column"),
    (r"(.*\.)?mlp\.fc1_(weight|bias)", "column"),
    (r"(.*\.)?(word_embeddings|final_linear|output_layer|lm_head)\.weight", "column"),
    (r"(.*\.)?(attention\.dense|self_attention\.dense|linear_proj|dense_4h_to_h|linear2|linear_fc2|w2)\.weight", "row"),
    (r"(.*\.)?mlp\.fc2_weight", "row"),
    (r"(.*\.)?(attention\.dense|self_attention\.dense|linear_proj|dense_4h_to_h|linear2|linear_fc2)\.bias", "row_bias"),
    (r"(.*\.)?mlp\.fc2_bias", "row_bias"),
)
_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in _RULES)


def rule_of(name: str) -> Rule:
    """What tensor-parallel ranks did with the tensor of this name."""
    return next((rule for pattern, rule in _COMPILED if pattern.fullmatch(name)), "replica")


def merged(name: str, parts: Mapping[int, TensorInfo], rule: Rule, *, sum_biases: bool) -> Wired:
    """The whole tensor from the parts of ranks 0, 1, ...; `parts` maps a rank to its tensor."""
    infos = [parts[rank] for rank in sorted(parts)]
    first = infos[0]
    if len(infos) == 1 or rule == "replica" or (rule == "row_bias" and not sum_biases):
        words = "" if len(infos) == 1 else f"one of {len(infos)} replicas"
        return Wired(
            TensorInfo(name, first.dtype, first.shape, first.where),
            (box(first.name, first.shape, _zeros(first), first.shape),),
            words,
        )
    if rule == "row_bias":
        links = tuple(box(info.name, info.shape, _zeros(info), info.shape) for info in infos)
        return Wired(
            TensorInfo(name, first.dtype, first.shape, first.where), links, f"sum of {len(infos)} ranks", combine="sum"
        )
    if rule in ("halves", "thirds"):
        return _each_part(name, infos, 2 if rule == "halves" else 3)
    axis = 0 if rule == "column" else len(first.shape) - 1
    shape = tuple(sum(i.shape[k] for i in infos) if k == axis else n for k, n in enumerate(first.shape))
    made, at = [], 0
    for info in infos:
        made.append(box(info.name, shape, tuple(at if k == axis else 0 for k in range(len(shape))), info.shape))
        at += info.shape[axis]
    return Wired(
        TensorInfo(name, first.dtype, shape, first.where), tuple(made), f"{len(infos)} ranks joined on axis {axis}"
    )


def _each_part(name: str, infos: list[TensorInfo], n: int) -> Wired:
    """Each rank holds n parts one after the other (gate and up; q, k and v), each to be joined with its like."""
    first = infos[0]
    rows, rest = sum(i.shape[0] for i in infos), first.shape[1:]
    width = c_strides((1, *rest))[0]
    links: list[Link] = []
    at = 0
    for info in infos:
        part = info.shape[0] // n
        for k in range(n):
            target = (k * (rows // n) + at) * width
            links.append(normal(Link(info.name, (part * width,), (1,), (1,), target, k * part * width)))
        at += part
    shape = (rows, *rest)
    return Wired(
        TensorInfo(name, first.dtype, shape, first.where), tuple(links), f"{len(infos)} ranks joined in {n} parts"
    )


def _zeros(info: TensorInfo) -> tuple[int, ...]:
    return (0,) * len(info.shape)
