"""Samplers: pure functions from positions to sample numbers. And what the families of blended documents share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

import pretrace.data.index as index
from pretrace.data.blend import Blend
from pretrace.data.sources import TokenSource
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError

Part = Literal["train", "valid", "test"]


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


def part_of(file: TokenFile, split: str | None, part: Part, style: Literal["neox", "megatron"]) -> range:
    """The documents of a part of a split; without a split the whole file."""
    if split is None:
        return range(len(file))
    bounds = index.split_bounds(split, len(file), style)
    number = ("train", "valid", "test").index(part)
    return range(bounds[number], max(bounds[number], bounds[number + 1]))


def weights_of(sources: tuple[TokenSource, ...], add: Any = np.sum) -> NDArray[np.float64]:
    """The weights over their sum. NeoX adds one after another, Megatron-core as numpy does: from eight on that can differ."""
    for source in sources if len(sources) > 1 else ():
        if source.weight is None:
            raise PretraceError("a source of a blend has no weight", source.path, "declare a weight for every source")
    weights = np.array([source.weight or 1.0 for source in sources], np.float64)
    shares: NDArray[np.float64] = weights / np.atleast_1d(add(weights))[-1]
    return shares


def blended(orders: list[Listed], made: Blend, *, wrap: bool) -> Listed:
    """The samples of a blend, numbered over all sources; `wrap`: a source that ends begins again, else that is an error.

    Raises
    ------
    PretraceError
        If a source is asked for more than it can give.
    """
    choice, within = made
    samples = np.empty(len(choice), np.int64)
    firsts = np.cumsum([0, *(len(o.samples) for o in orders)])
    for number, one in enumerate(orders):
        here = choice == number
        wanted = within[here]
        if len(wanted) and wanted[-1] >= len(one):
            wanted = _again(wanted, one, number) if wrap else _too_many(wanted, one, number)
        samples[here] = firsts[number] + one.samples[wanted].astype(np.int64)
    return Listed(samples, len(samples))


def _again(wanted: NDArray[np.int64], one: Listed, number: int) -> NDArray[np.int64]:
    """GPT-NeoX beyond the length of a source: its list holds one sample more than the length says, and that one is served;
    what lies beyond the list is an IndexError, which it answers, without a word, with the place modulo the length."""
    if len(one) == 0 and wanted[-1] >= len(one.samples):
        return _too_many(wanted, one, number)  # a division by zero upstream
    return np.where(wanted < len(one.samples), wanted, wanted % max(len(one), 1))


def _too_many(wanted: NDArray[np.int64], one: Listed, number: int) -> NDArray[np.int64]:
    raise PretraceError(f"the blend asks source {number} for {int(wanted[-1]) + 1:,} samples, it has {len(one):,}",
                        "order", "lower its weight or the number of samples")  # fmt: skip
