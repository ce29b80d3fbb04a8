"""How the tensors of tensor-parallel ranks make whole ones, by the end of their names.

Column-parallel weights are cut along their output axis, row-parallel ones along their input axis, the rest are replicas. The
bias of a row-parallel linear is special in GPT-NeoX. With `gpt_j_residual` every rank adds its own bias before the
all-reduce: the true bias is the sum. Without it the bias is added once, after: all ranks hold the same one.
(Read from gpt-neox ea7aefd8, megatron/model/transformer.py; both published converters sum always.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.links import Link, box, c_strides, normal, whole
from pretrace.checkpoint.rewired import Wired
from pretrace.checkpoint.view import TensorInfo
from pretrace.errors import PretraceError

Rule = Literal["column", "parts", "row", "row_bias", "replica"]

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


def merged(
    name: str, parts: Mapping[int, TensorInfo], rule: Rule, *, sum_biases: bool, shares: tuple[int, ...] = ()
) -> Wired:
    """The whole tensor from the parts of ranks 0, 1, ...; `parts` maps a rank to its tensor.

    With the rule `parts` each rank holds several pieces one after the other, as tall as `shares` say in proportion.
    """
    infos = [parts[rank] for rank in sorted(parts)]
    first = infos[0]
    if len(infos) == 1:
        return _one(name, first, "")
    axis = len(first.shape) - 1 if rule == "row" else 0
    _refuse_unlike(name, infos, axis if rule in ("column", "parts", "row") else None)
    if rule == "replica" or (rule == "row_bias" and not sum_biases):
        return _one(name, first, f"one of {len(infos)} replicas")
    if rule == "row_bias":
        links = tuple(box(info.name, info.shape, _zeros(info), info.shape) for info in infos)
        return Wired(
            TensorInfo(name, first.dtype, first.shape, first.where), links, f"sum of {len(infos)} ranks", combine="sum"
        )
    if rule == "parts":
        return _each_part(name, infos, shares)
    shape = tuple(sum(i.shape[k] for i in infos) if k == axis else n for k, n in enumerate(first.shape))
    made, at = [], 0
    for info in infos:
        made.append(box(info.name, shape, tuple(at if k == axis else 0 for k in range(len(shape))), info.shape))
        at += info.shape[axis]
    return Wired(
        TensorInfo(name, first.dtype, shape, first.where), tuple(made), f"{len(infos)} ranks joined on axis {axis}"
    )


def split(
    whole_info: TensorInfo, rule: Rule, n_ranks: int, names: Sequence[str], shares: tuple[int, ...] = ()
) -> list[Wired]:
    """The parts of ranks 0, 1, ..., called `names`, of a whole tensor: the inverse of `merged`. Biases are replicas.

    Raises
    ------
    PretraceError
        If the tensor cannot be cut evenly.
    """
    shape, axis = whole_info.shape, len(whole_info.shape) - 1 if rule == "row" else 0
    if rule in ("replica", "row_bias") or n_ranks == 1:
        return [_one(name, whole_info, "") for name in names]
    cut = shares if rule == "parts" else (1,)
    if any(shape[axis] * share % (n_ranks * sum(cut)) for share in cut):
        vocabulary = any(word in whole_info.name for word in ("embed", "final_linear"))
        rows = -(-shape[axis] // n_ranks) * n_ranks
        mend = f", or rows of vocabulary that they divide (--pad-vocab {rows})" if vocabulary and not axis else ""
        raise PretraceError(
            f"{shape[axis]} {'columns' if axis else 'rows'} of {whole_info.name} are not cut evenly over {n_ranks} ranks",
            "--tp", f"choose another number of ranks{mend}",
        )  # fmt: skip
    part = tuple(n // n_ranks if k == axis else n for k, n in enumerate(shape))
    infos = {k: TensorInfo(name, whole_info.dtype, part, whole_info.where) for k, name in enumerate(names)}
    joined = merged(whole_info.name, infos, rule, sum_biases=False, shares=shares)
    turned = {name: [one.turned(whole_info.name) for one in joined.links if one.source == name] for name in names}
    return [Wired(infos[k], tuple(turned[name]), f"part {k + 1} of {n_ranks}") for k, name in enumerate(names)]


def _one(name: str, info: TensorInfo, words: str) -> Wired:
    return Wired(TensorInfo(name, info.dtype, info.shape, info.where), (whole(info.name, info.shape),), words)


def _each_part(name: str, infos: list[TensorInfo], shares: tuple[int, ...]) -> Wired:
    """Each piece (gate and up; q, k and v) is joined with its like of the other ranks."""
    first = infos[0]
    rest = first.shape[1:]
    width = c_strides((1, *rest))[0]
    links: list[Link] = []
    target = 0
    total = sum(shares)
    for k, share in enumerate(shares):
        for info in infos:
            if info.shape[0] * share % total:
                raise DamagedFile(
                    "shape", f"{info.shape[0]} rows cannot be cut as {':'.join(map(str, shares))}", info.name,
                    "check that config and weights belong together",
                )  # fmt: skip
            n = info.shape[0] * share // total * width
            start = info.shape[0] * sum(shares[:k]) // total * width
            links.append(normal(Link(info.name, (n,), (1,), (1,), target, start)))
            target += n
    joined = TensorInfo(name, first.dtype, (sum(i.shape[0] for i in infos), *rest), first.where)
    return Wired(joined, tuple(links), f"{len(infos)} ranks joined in {len(shares)} parts")


def _refuse_unlike(name: str, infos: list[TensorInfo], axis: int | None) -> None:
    """Parts may differ in size on the axis that is cut, and in nothing else."""
    kinds = {(i.dtype, tuple(n for k, n in enumerate(i.shape) if k != axis), len(i.shape)) for i in infos}
    if len(kinds) > 1 or (axis is not None and not infos[0].shape):
        shapes = ", ".join(f"{i.dtype} {list(i.shape)}" for i in infos[:4])
        raise DamagedFile("files-ranks", f"the ranks' parts of {name} do not fit each other: {shapes}", infos[0].where,
                          "the ranks' files are from different models")  # fmt: skip


def _zeros(info: TensorInfo) -> tuple[int, ...]:
    return (0,) * len(info.shape)
