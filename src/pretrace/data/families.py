"""The order families by name; and the two simple ones: pre-shuffled files, and the plain stream of documents.

Each has a spec (its settings, all of them declared) and a function that opens it: sources -> (sampler, windows). A sampler maps
positions to sample numbers and is a pure function; windows map sample numbers to tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

import pretrace.data.index as index
import pretrace.data.loaders as loaders
import pretrace.data.rows as rows
from pretrace.data.blend import Kernels
from pretrace.data.index import IndexPlan, Maps
from pretrace.data.megatron import MegatronOrder as MegatronOrder
from pretrace.data.megatron import open_megatron
from pretrace.data.neox import NeoxOrder as NeoxOrder
from pretrace.data.neox import open_neox
from pretrace.data.samplers import Identity, Sampler
from pretrace.data.samplers import Listed as Listed
from pretrace.data.shuffle import shuffler
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.windows import EntryWindows, StreamWindows, Windows, join
from pretrace.errors import PretraceError
from pretrace.spec import Spec


class PreshuffledOrder(Spec):
    """Entry i of the file is sample i, whole: never shuffled, never repacked."""

    family: Literal["preshuffled"]


class ShuffledEntriesOrder(Spec):
    """The entries of a pre-shuffled file in another order, each still whole: what a decoy of such a file is."""

    family: Literal["shuffled_entries"]
    seed: NonNegativeInt


class StreamOrder(Spec):
    """Documents in a stream, cut into samples; the two shuffles can be switched off one by one, each with its own seed."""

    family: Literal["stream"]
    epochs: PositiveInt
    document_seed: NonNegativeInt | None  # None: documents keep the order of the file
    sample_seed: NonNegativeInt | None  # None: samples keep the order of the stream
    mix_epochs: bool  # shuffle all epochs together, or each alone with seed + epoch


def open_preshuffled(
    order: PreshuffledOrder, sources: tuple[TokenSource, ...], seq_len: int
) -> tuple[Sampler, Windows]:
    """The entries of the files, one file after another."""
    parts: list[Windows] = []
    for source in sources:
        file = open_source(source)
        wrong = np.flatnonzero(np.asarray(file.lengths) != seq_len + 1)
        if len(wrong):
            raise PretraceError(
                f"entry {int(wrong[0]):,} has {int(file.lengths[wrong[0]]):,} tokens, a sample needs {seq_len + 1:,}",
                source.path, "the lengths vary: this file is in corpus order, use the neox or megatron order"
                if len(wrong) < len(file) else f"set seq_len to {int(file.lengths[0]) - 1:,}")  # fmt: skip
        parts.append(EntryWindows(file, seq_len))
    windows = join(parts)
    return Identity(len(windows)), windows


def open_shuffled_entries(
    order: ShuffledEntriesOrder, sources: tuple[TokenSource, ...], seq_len: int
) -> tuple[Sampler, Windows]:
    """The entries of the files, shuffled as NeoX shuffles samples."""
    entries, windows = open_preshuffled(PreshuffledOrder(family="preshuffled"), sources, seq_len)
    numbers = np.arange(len(entries), dtype=np.int64)
    shuffler(order.seed, len(numbers)).shuffle(numbers)
    return Listed(numbers, len(numbers)), windows


def open_stream(order: StreamOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """One source, documents and samples shuffled or not."""
    if len(sources) != 1:
        raise PretraceError(
            "the stream order reads one source", "data.sources", "merge them, or blend with neox or megatron"
        )
    file = open_source(sources[0])
    documents = range(len(file))
    per_epoch = (file.n_tokens - 1) // seq_len
    samples = (order.epochs * file.n_tokens - 1) // seq_len
    plan = IndexPlan(documents, file.n_tokens, seq_len, order.epochs, False, samples, samples, True, "int64")
    doc_idx = _rounds(len(file), order.epochs, order.document_seed, order.mix_epochs).astype(np.int32)
    kernels: Kernels = "fast" if len(doc_idx) + samples > 2_000_000 else "plain"
    sample_idx = index.starts(plan, file.lengths, doc_idx, kernels=kernels)
    # Samples of epoch e start in [e * T, (e + 1) * T); shuffled alone, each epoch keeps its own.
    cuts = [-(-e * file.n_tokens // seq_len) for e in range(order.epochs)] + [samples]
    numbers = np.arange(samples, dtype=np.int64)
    if order.sample_seed is not None:
        blocks = [(0, samples)] if order.mix_epochs else list(pairwise(cuts))
        for epoch, (first, last) in enumerate(blocks):
            shuffler(order.sample_seed + epoch, last - first).shuffle(numbers[first:last])
    if per_epoch < 1:
        raise PretraceError(
            f"{file.n_tokens:,} tokens do not fill one sample of {seq_len:,}", sources[0].path, "lower seq_len"
        )
    return Listed(numbers, samples), StreamWindows(file, Maps(doc_idx, sample_idx, numbers), seq_len, 1)


def _rounds(n: int, epochs: int, seed: int | None, mix: bool) -> NDArray[np.int64]:
    rounds = np.tile(np.arange(n, dtype=np.int64), (epochs, 1))
    if seed is not None:
        for epoch, part in enumerate([rounds.reshape(-1)] if mix else rounds):
            shuffler(seed + epoch, len(part)).shuffle(part)
    return rounds.reshape(-1)


def pad_id(order: object) -> int | None:
    """The id that stands for "no token" in this order, if it has one."""
    return order.pad_id if isinstance(order, MegatronOrder) else None


_OPEN: dict[str, Any] = {
    "neox": open_neox,
    "megatron": open_megatron,
    "preshuffled": open_preshuffled,
    "shuffled_entries": open_shuffled_entries,
    "stream": open_stream,
    "rows": rows.open_rows,
    **loaders.OPEN,
}


def open_family(order: Any, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """Opens the family that the spec names."""
    opened: tuple[Sampler, Windows] = _OPEN[order.family](order, sources, seq_len)
    return opened
