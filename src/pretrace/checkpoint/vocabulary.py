"""Padding rows of the vocabulary: embedding and head are often taller than the tokenizer, each writer by its own rule.

Pythia's smaller models have 50,304 rows for 50,277 tokens, llm.c pads to a multiple of 128, Megatron to a multiple of 128 x
tensor-parallel ranks. Rows beyond the tokenizer's are never looked up.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pretrace.checkpoint.links import whole
from pretrace.checkpoint.optimizer_names import parsed
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.errors import PretraceError

TALL = ("embed.weight", "head.weight")


def is_tall(name: str) -> bool:
    """Whether a canonical tensor has a row for each id: embedding, head, and their moments and masters.

    >>> is_tall("head.weight"), is_tall("optimizer.exp_avg.embed.weight"), is_tall("pos_embed.weight")
    (True, True, False)
    """
    state = parsed(name)
    return (name if state is None else state[1]) in TALL


def with_rows(view: StateView, rows: int) -> StateView:
    """A canonical view with `rows` rows of vocabulary: the first ones, or all of them and rows of zeros after.

    Embedding, head and what the optimizer keeps of them change together.

    Raises
    ------
    PretraceError
        If `rows` is not above 0.
    """
    if rows < 1:
        raise PretraceError(f"{rows} rows of a vocabulary", "", "ask for at least one")
    made = {}
    for name in view.names():
        info = view.info(name)
        made[name] = (
            _resized(info, rows) if is_tall(name) and info.shape[0] != rows else Wired(info, (whole(name, info.shape),))
        )
    return RewiredView(view, made)


def _resized(info: TensorInfo, rows: int) -> Wired:
    shape = (rows, *info.shape[1:])
    kept = whole(info.name, (min(rows, info.shape[0]), *info.shape[1:]))
    words = (
        f"{info.shape[0] - rows} padding rows cut"
        if rows < info.shape[0]
        else f"{rows - info.shape[0]} rows of zeros added"
    )
    return Wired(replace(info, shape=shape), (kept,), words, sparse=kept.numel < math.prod(shape))
