"""What a file of this folder offers: one framework, as three functions on stored tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.convert.second.arithmetic import Array
from pretrace.convert.second.stored import Stored
from pretrace.model.spec import ModelSpec

Heads = tuple[Array, Array, Array]  # q [B, T, H, d], k and v [B, T, G, d]


@dataclass(frozen=True, slots=True)
class Reader:
    """One framework: how it embeds, runs block `i`, and makes logits."""

    name: str
    embed: Callable[[Stored, ModelSpec, NDArray[np.int64]], Array]
    block: Callable[[Stored, ModelSpec, int, Array], Array]
    logits: Callable[[Stored, ModelSpec, Array], Array]
