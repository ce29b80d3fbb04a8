"""The order of Megatron-core: one index a source, the last epoch apart; sources blended by weight or by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import NonNegativeInt

import pretrace.data.blend as blend
import pretrace.data.index as index
from pretrace.data.index import IndexPlan
from pretrace.data.samplers import Listed, Part, Sampler, blended, part_of, weights_of
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import TokenFile
from pretrace.data.windows import StreamWindows, Windows, join
from pretrace.errors import PretraceError
from pretrace.spec import Spec


class MegatronOrder(Spec):
    """Megatron-core's GPTDataset; sources with weights are a blend with its surplus of 0.5%, without weights one by length."""

    family: Literal["megatron"]
    num_samples: NonNegativeInt | None  # None: one epoch
    seed: NonNegativeInt
    split: str
    part: Part
    extra_token: bool  # add_extra_token_to_sequence
    keep_partial: bool  # keep the last partial sequence (upstream only for validation)
    pad_id: int | None  # the tokenizer's pad id: inputs become 0 and labels uncounted there; None if it has none


def open_megatron(order: MegatronOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """One file without a weight, a blend by weights, or a blend by lengths: upstream's builder has these three ways."""
    files = [open_source(source) for source in sources]
    if all(source.weight is None for source in sources):
        # A blend without weights reads each file once at most, so each is built for one pass.
        wanted = [order.num_samples] if len(files) == 1 else [None] * len(files)
        orders, windows = _megatron_parts(order, files, wanted, seq_len)
        return (orders[0] if len(files) == 1 else _by_length(orders, order.num_samples)), windows
    weights = weights_of(sources)
    targets = [_target(order, w) for w in weights.tolist()]
    orders, windows = _megatron_parts(order, files, [megatron_request(order, w) for w in weights.tolist()], seq_len)
    # Upstream normalises the normalised weights once more, which can move their last bit.
    return blended(orders, blend.by_weight(weights / weights.sum(), sum(targets)), wrap=False), windows


def _target(order: MegatronOrder, weight: float) -> int:
    """Samples that a blend by weights takes of one source."""
    if order.num_samples is None:
        raise PretraceError("a blend by weights has no number of samples", "order.num_samples",
                            "declare it, or leave the weights out (Megatron-core refuses this too)")  # fmt: skip
    return math.ceil(order.num_samples * weight)


def megatron_request(order: MegatronOrder, weight: float) -> int:
    """Samples that a blend by weights asks of one source, with upstream's surplus."""
    return math.ceil(_target(order, weight) * 1.005)


def _megatron_parts(
    order: MegatronOrder, files: list[TokenFile], wanted: Sequence[int | None], seq_len: int
) -> tuple[list[Listed], Windows]:
    parts: list[Windows] = []
    orders: list[Listed] = []
    for file, n in zip(files, wanted):
        maps = index.build(megatron_index_plan(order, file, seq_len, n), file.lengths, order.seed)
        parts.append(StreamWindows(file, maps, seq_len, int(order.extra_token)))
        orders.append(Listed(maps.shuffle_idx, len(maps.shuffle_idx)))
    return orders, join(parts)


def _by_length(orders: list[Listed], num_samples: int | None) -> Listed:
    """Without weights a source is read in proportion to its samples; without a number of samples every one exactly once."""
    sizes = np.array([len(one) for one in orders], np.int64)
    total = int(sizes.sum())
    if num_samples is None:
        return blended(orders, blend.exhaustive(sizes), wrap=False)
    return blended(orders, blend.by_weight(sizes / float(total), min(num_samples, total)), wrap=False)


def megatron_index_plan(order: MegatronOrder, file: TokenFile, seq_len: int, wanted: int | None) -> IndexPlan:
    """The plan of one source."""
    documents = part_of(file, order.split, order.part, "megatron")
    return index.megatron_plan(file.n_tokens_of(documents), documents, seq_len, wanted,
                               extra_token=order.extra_token, keep_partial=order.keep_partial)  # fmt: skip
