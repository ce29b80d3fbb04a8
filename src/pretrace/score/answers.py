"""What a model answers to a request: the log-likelihood of every token. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Of one request: the log-likelihood in nats of every token of its continuation, and whether it is the likeliest."""

    logprobs: NDArray[np.float32]  # [S]
    likeliest: NDArray[np.bool_]  # [S]

    @property
    def finite(self) -> bool:
        """Whether every log-likelihood is a number."""
        return bool(np.isfinite(self.logprobs).all())
