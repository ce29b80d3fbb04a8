"""The order families of loaders that read flat arrays: OLMo, llm.c, nanoGPT.

Here the order depends on the number of ranks, so their specs carry it. A position means what it means everywhere: `Topology`
gives rank r of micro-step g its block of positions, and the sampler says which sample that loader would have put there.
Sources: allenai/OLMo 59a53e3 (olmo/data/iterable_dataset.py), karpathy/llm.c f1e2ace (llmc/dataloader.h, rand.h),
karpathy/nanoGPT 3adf61e (train.py) over torch 2.13 (randint on the CPU).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from pretrace.data.draws import Draws, permutation_llmc
from pretrace.data.sources import TokenSource, open_flat
from pretrace.data.windows import FlatWindows, Windows, join
from pretrace.errors import PretraceError
from pretrace.spec import Spec


class OlmoOrder(Spec):
    """OLMo and OLMo-core: windows of seq_len without overlap, a PCG64 shuffle an epoch, sample i to rank i mod world_size."""

    family: Literal["olmo"]
    epochs: PositiveInt
    first_epoch: Literal[0, 1]  # the number that is added to the seed first: 0 in OLMo, 1 in OLMo-core
    seed: NonNegativeInt
    drop_last: bool  # cut to a multiple of world_size, or fill up from the start
    world_size: PositiveInt
    grad_accum_steps: PositiveInt
    micro_batch: PositiveInt


class LlmcOrder(Spec):
    """llm.c's DataLoader: shards in sorted order, or shuffled by every rank for itself."""

    family: Literal["llmc"]
    epochs: PositiveInt
    shuffle_seed: NonNegativeInt | None  # 42 in llm.c, to which the rank is added; None: no shuffling
    world_size: PositiveInt
    micro_batch: PositiveInt


class NanoGPTOrder(Spec):
    """nanoGPT's get_batch: windows at random places, with replacement, from torch's default generator."""

    family: Literal["nanogpt"]
    steps: PositiveInt
    seed: NonNegativeInt  # 1337 in nanoGPT, to which the rank is added
    draws_before: NonNegativeInt  # 32-bit draws that initialising the model takes from the same generator
    wide_bits: Literal[28, 32]  # torch draws 64 bits for ranges from 2^this on: 28 in torch 2.13, 32 in older versions
    eval_interval: NonNegativeInt  # 0: never; evaluation on rank 0 draws from the same generator
    eval_iters: NonNegativeInt
    world_size: PositiveInt
    grad_accum_steps: PositiveInt
    micro_batch: PositiveInt


@dataclass(frozen=True, slots=True)
class OlmoSampler:
    """Position -> window, epoch by epoch; the permutation of one epoch is held at a time."""

    order: OlmoOrder
    n: int
    _cache: dict[int, NDArray[np.uint32]] = field(default_factory=dict, compare=False)

    @property
    def per_epoch(self) -> int:
        """Samples that an epoch serves: whole global batches."""
        world, batch = self.order.world_size, self.global_batch
        each = self.n // world if self.order.drop_last else -(-self.n // world)
        return each * world // batch * batch

    @property
    def global_batch(self) -> int:
        """Sequences per update."""
        return self.order.world_size * self.order.grad_accum_steps * self.order.micro_batch

    def __len__(self) -> int:
        return self.order.epochs * self.per_epoch

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The windows at `positions`."""
        p = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        epoch, inside = np.divmod(p, max(self.per_epoch, 1))
        step, place = np.divmod(inside, self.global_batch)
        micro, rest = np.divmod(place, self.order.world_size * self.order.micro_batch)
        rank, j = np.divmod(rest, self.order.micro_batch)
        index = step * self.global_batch + (micro * self.order.micro_batch + j) * self.order.world_size + rank
        out = np.empty(len(p), np.int64)
        for e in np.unique(epoch).tolist():
            out[epoch == e] = self._indices(e)[index[epoch == e] % self.n]  # filled up by repeating from the start
        return out

    def _indices(self, epoch: int) -> NDArray[np.uint32]:
        if epoch not in self._cache:
            indices = np.arange(self.n, dtype=np.uint32)
            np.random.Generator(np.random.PCG64(self.order.seed + self.order.first_epoch + epoch)).shuffle(indices)
            self._cache.clear()
            self._cache[epoch] = indices
        return self._cache[epoch]


def open_olmo(order: OlmoOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[OlmoSampler, Windows]:
    """Windows of every file, tails dropped; the last place of a window has no target."""
    windows = _windows(sources, seq_len, seq_len, seq_len)
    if len(windows) == 0:
        raise PretraceError(f"no file fills one window of {seq_len}", sources[0].path, "lower seq_len")
    return OlmoSampler(order, len(windows)), windows


def _windows(sources: tuple[TokenSource, ...], seq_len: int, width: int, advance: int) -> Windows:
    arrays = [array for source in sources for array in open_flat(source)]
    return join([FlatWindows(array, seq_len, width, advance) for array in arrays])


@dataclass(frozen=True, slots=True)
class LlmcSampler:
    """Position -> window. The micro-batches of every rank are listed once: (first window) of each."""

    order: LlmcOrder
    blocks: NDArray[np.int64]  # [world_size, micro-batches]

    def __len__(self) -> int:
        return int(self.blocks.size) * self.order.micro_batch

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The windows at `positions`."""
        p = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        block, j = np.divmod(p, self.order.micro_batch)
        micro, rank = np.divmod(block, self.order.world_size)
        found: NDArray[np.int64] = self.blocks[rank, micro] + j
        return found


def open_llmc(order: LlmcOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[LlmcSampler, Windows]:
    """Shards in the order of the sources; every shard must hold one global micro-batch."""
    windows = _windows(sources, seq_len, seq_len + 1, seq_len)
    parts = [array for source in sources for array in open_flat(source)]
    stride = order.world_size * order.micro_batch
    batches = [(len(tokens) - 1) // (stride * seq_len) for tokens in parts]
    if min(batches) < 1:
        small = batches.index(min(batches))
        raise PretraceError(f"shard {small} holds {len(parts[small]):,} tokens, one global micro-batch needs "
                            f"{stride * seq_len + 1:,}", sources[0].path, "llm.c refuses it too: use fewer ranks")  # fmt: skip
    firsts = np.cumsum([0, *((len(tokens) - 1) // seq_len for tokens in parts[:-1])])
    rows = [_llmc_rank(order, rank, batches, firsts) for rank in range(order.world_size)]
    return LlmcSampler(order, np.stack(rows)), windows


def _llmc_rank(order: LlmcOrder, rank: int, batches: list[int], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    shards = np.arange(len(batches))
    draws = None if order.shuffle_seed is None else Draws(order.shuffle_seed + rank)
    found: list[NDArray[np.int64]] = []
    for _ in range(order.epochs):
        if draws is not None:
            permutation_llmc(shards, draws)  # the order of shards keeps being permuted, epoch after epoch
        for shard in shards.tolist():
            inside = np.arange(batches[shard], dtype=np.int64)
            if draws is not None:
                permutation_llmc(inside, draws)
            found.append(firsts[shard] + inside * order.world_size * order.micro_batch + rank * order.micro_batch)
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class NanoGPTSampler:
    """Position -> first token of a window, drawn again from the seed."""

    order: NanoGPTOrder
    places: int  # len(data) - block_size
    streams: tuple[Draws, ...]  # one a rank

    def __len__(self) -> int:
        o = self.order
        return o.steps * o.world_size * o.grad_accum_steps * o.micro_batch

    def __call__(self, positions: range) -> NDArray[np.int64]:
        """The windows at `positions`."""
        o = self.order
        out = np.empty(len(positions), np.int64)
        for at, position in enumerate(positions):
            block, j = divmod(position, o.micro_batch)
            micro, rank = divmod(block, o.world_size)
            number = self._draws(rank, micro) + j * (2 if self.wide else 1)
            out[at] = self.streams[rank].bounded(number, self.places, wide=self.wide)
        return out

    @property
    def wide(self) -> bool:
        """Whether one place takes two draws."""
        return self.places >> self.order.wide_bits > 0

    def _draws(self, rank: int, micro: int) -> int:
        """32-bit draws that rank's generator has made before its micro-batch number `micro`."""
        o = self.order
        evaluations = 0
        if rank == 0 and o.eval_interval and micro > 0:  # the first batch is fetched before the first evaluation
            evaluations = ((micro - 1) // o.grad_accum_steps) // o.eval_interval + 1
        batches = micro + evaluations * 2 * o.eval_iters
        return o.draws_before + batches * o.micro_batch * (2 if self.wide else 1)


def open_nanogpt(order: NanoGPTOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[NanoGPTSampler, Windows]:
    """One flat file; every place is a window."""
    windows = _windows(sources, seq_len, seq_len + 1, 1)
    if not isinstance(windows, FlatWindows) or len(windows) < 1:
        raise PretraceError(f"nanoGPT reads one file of more than {seq_len} ids", sources[0].path, "name one file")
    streams = tuple(Draws(order.seed + rank) for rank in range(order.world_size))
    return NanoGPTSampler(order, len(windows.tokens) - seq_len, streams), windows


OPEN: dict[str, Any] = {"olmo": open_olmo, "llmc": open_llmc, "nanogpt": open_nanogpt}
