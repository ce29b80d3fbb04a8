"""Dropout whose masks belong to samples, not to processes.

Every mask is drawn from a generator seeded by (seed, position of the sample in the order, site in the model). So no two ranks
share masks (huggingface/transformers#31412), the same sample meets the same mask however ranks and micro-batches are laid out,
and a resumed run needs no generator's state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Dropper:
    """Drops elements of [B, ..] tensors, row b by the generators of sample b."""

    seed: int
    samples: tuple[int, ...]

    def __call__(self, x: Tensor, p: float, site: int) -> Tensor:
        """x with elements zeroed with probability `p` and the others divided by 1 - p."""
        if p == 0:
            return x
        keep = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        generator = torch.Generator(x.device)
        for row, sample in zip(keep, self.samples, strict=True):
            generator.manual_seed(key_of(self.seed, sample, site))
            row.bernoulli_(1 - p, generator=generator)
        return x * (keep / (1 - p)).to(x.dtype)


def key_of(seed: int, sample: int, site: int) -> int:
    """63 well-mixed bits of three numbers (three rounds of splitmix64's finaliser)."""
    mixed = 0
    for number in (seed, sample, site):
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed >> 1
