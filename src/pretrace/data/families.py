"""The order families that are built from documents: NeoX, Megatron-core, pre-shuffled files, and the plain stream.

Each has a spec (its settings, all of them declared) and a function that opens it: sources -> (sampler, windows). A sampler maps
positions to sample numbers and is a pure function; windows map sample numbers to tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

import pretrace.data.index as index
import pretrace.data.loaders as loaders
import pretrace.data.rows as rows
from pretrace.data.index import IndexPlan, Maps
from pretrace.data.shuffle import shuffler
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import TokenFile
from pretrace.data.windows import EntryWindows, StreamWindows, Windows, join
from pretrace.errors import PretraceError
from pretrace.spec import Spec

Part = Literal["train", "valid", "test"]


class NeoxOrder(Spec):
    """GPT-NeoX. `split`: the shares of `data_path`; None: whole files by weight (`train-data-paths`, Pythia's way)."""

    family: Literal["neox"]
    version: Literal["v1.0", "head"]
    num_samples: (
        NonNegativeInt | None
    )  # what training asks for (steps * global batch); None: one epoch (head's train_epochs)
    seed: NonNegativeInt
    split: str | None
    part: Part
    surplus: bool  # ask each file for 0.5% more, as `train-data-paths` does


class MegatronOrder(Spec):
    """Megatron-core's GPTDataset; several sources are a blend with its surplus of 0.5%."""

    family: Literal["megatron"]
    num_samples: NonNegativeInt | None  # None: one epoch
    seed: NonNegativeInt
    split: str
    part: Part
    extra_token: bool  # add_extra_token_to_sequence
    keep_partial: bool  # keep the last partial sequence (upstream only for validation)
    pad_id: int | None  # the tokenizer's pad id: inputs become 0 and labels uncounted there; None if it has none


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


class Sampler(Protocol):
    """Positions -> sample numbers."""

    def __len__(self) -> int: ...

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The samples at `positions`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Sample numbers written out; `length` may be smaller than the list (NeoX drops the last sample)."""

    samples: NDArray[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The samples at `positions`."""
        return self.samples[positions.start : positions.stop : positions.step].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Identity:
    """Sample i at position i."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The samples at `positions`."""
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)


def open_neox(order: NeoxOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """One index a source; several sources are blended, and one sample of each is out of reach (upstream's length rule)."""
    files = [open_source(source) for source in sources]
    weights = _weights(sources)
    parts: list[Windows] = []
    orders: list[Listed] = []
    for file, weight in zip(files, weights):
        plan = neox_index_plan(order, file, seq_len, float(weight))
        maps = index.build(plan, file.lengths, order.seed)
        parts.append(StreamWindows(file, maps, seq_len, 1))
        orders.append(Listed(maps.shuffle_idx, max(0, len(maps.shuffle_idx) - 1)))
    if len(files) == 1:
        return orders[0], parts[0]
    return _blended(orders, weights, sum(len(o) for o in orders), wrap=True), join(parts)


def neox_index_plan(order: NeoxOrder, file: TokenFile, seq_len: int, weight: float) -> IndexPlan:
    """The plan of one source. The request is ceil(n * w * 1.005) with the surplus, ceil(n * w) without."""
    documents = _part(file, order.split, order.part, "neox")
    wanted = order.num_samples
    if wanted is not None:
        wanted = math.ceil(wanted * weight * 1.005) if order.surplus else math.ceil(wanted * weight)
    return index.neox_plan(file.n_tokens_of(documents), documents, seq_len, wanted, order.version)


def open_megatron(order: MegatronOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """One index a source; a blend asks each for its target plus 0.5% and refuses to read a source beyond its end."""
    files = [open_source(source) for source in sources]
    weights = _weights(sources)
    targets = [None if order.num_samples is None else math.ceil(order.num_samples * float(w)) for w in weights]
    parts: list[Windows] = []
    orders: list[Listed] = []
    for file, target in zip(files, targets):
        wanted = target if len(files) == 1 or target is None else math.ceil(target * 1.005)
        maps = index.build(megatron_index_plan(order, file, seq_len, wanted), file.lengths, order.seed)
        parts.append(StreamWindows(file, maps, seq_len, int(order.extra_token)))
        orders.append(Listed(maps.shuffle_idx, len(maps.shuffle_idx)))
    if len(files) == 1:
        return orders[0], parts[0]
    size = sum(len(o) for o in orders) if order.num_samples is None else sum(t or 0 for t in targets)
    return _blended(orders, weights, size, wrap=False), join(parts)


def megatron_index_plan(order: MegatronOrder, file: TokenFile, seq_len: int, wanted: int | None) -> IndexPlan:
    """The plan of one source."""
    documents = _part(file, order.split, order.part, "megatron")
    return index.megatron_plan(file.n_tokens_of(documents), documents, seq_len, wanted,
                               extra_token=order.extra_token, keep_partial=order.keep_partial)  # fmt: skip


def _part(file: TokenFile, split: str | None, part: Part, style: Literal["neox", "megatron"]) -> range:
    if split is None:
        return range(len(file))
    bounds = index.split_bounds(split, len(file), style)
    number = ("train", "valid", "test").index(part)
    return range(bounds[number], max(bounds[number], bounds[number + 1]))


def _weights(sources: tuple[TokenSource, ...]) -> NDArray[np.float64]:
    if len(sources) == 1:
        return np.ones(1)
    for source in sources:
        if source.weight is None:
            raise PretraceError("a source of a blend has no weight", source.path, "declare a weight for every source")
    weights = np.array([source.weight for source in sources], np.float64)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _blended(orders: list[Listed], weights: NDArray[np.float64], size: int, *, wrap: bool) -> Listed:
    choice, within = index.blend(weights, size)
    samples = np.empty(size, np.int64)
    firsts = np.cumsum([0, *(len(o.samples) for o in orders)])
    for number, one in enumerate(orders):
        here = choice == number
        wanted = within[here]
        if len(wanted) and wanted[-1] >= len(one):
            if not wrap:
                raise PretraceError(f"the blend asks source {number} for {int(wanted[-1]) + 1:,} samples, it has {len(one):,}",
                                    "order", "lower its weight or the number of samples")  # fmt: skip
            wanted = wanted % len(one)  # NeoX starts again from the first sample without a word
        samples[here] = firsts[number] + one.samples[wanted].astype(np.int64)
    return Listed(samples, size)


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
    kernels: index.Kernels = "fast" if len(doc_idx) + samples > 2_000_000 else "plain"
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
