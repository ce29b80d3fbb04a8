"""Initial values: every tensor has a generator of its own, so that neither order nor sharding changes them."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from pretrace.model.spec import ModelSpec, std_of


def generator_of(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on the seed and the tensor's name only."""
    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
    return torch.Generator().manual_seed(number)


@torch.no_grad()
def initialise(model: nn.Module, spec: ModelSpec, seed: int) -> None:
    """Sets every parameter of `model` (canonical names) to its initial value under `spec.init` and `seed`, in place."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            values = torch.empty(parameter.shape, dtype=torch.float32)
            values.normal_(0.0, std_of(spec, name), generator=generator_of(seed, name))
            parameter.copy_(values)
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
