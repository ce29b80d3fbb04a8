"""An array in chunks of one size, as it will be written: which chunk holds which elements.

Every chunk is a run of elements of one tensor. A stacked array whose layers are large is written layer by layer: its chunks have
size 1 on the stacked axis, so that a chunk is a run of that layer's own tensor and no stride of the stack is walked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's place in the grid of its array, and the run of elements of a tensor of `sources` that it holds."""

    index: tuple[int, ...]
    tensor: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in chunks: its key, the tensor of `sources` that is its content, the sizes of a chunk.

    With `layers` the array is these tensors stacked on `axis`, and each of its chunks is a run of one of them.
    """

    key: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    layers: tuple[str, ...] = ()
    axis: int = 0

    @property
    def runs(self) -> tuple[str, ...]:
        """The tensors that its chunks are runs of."""
        return self.layers or (self.tensor,)

    @property
    def placed(self) -> Iterator[Chunk]:
        """All chunks, tensor after tensor of `runs`, each in the order of its elements."""
        grid = [range(n // c) for n, c in zip(self.shape, self.chunks, strict=True)]
        n = math.prod(self.chunks)
        for layer, tensor in enumerate(self.runs):
            axes = [range(layer, layer + 1) if self.layers and k == self.axis else axis for k, axis in enumerate(grid)]
            for at, index in enumerate(itertools.product(*axes)):
                yield Chunk(index, tensor, at * n, (at + 1) * n)


def chunk_shape(shape: tuple[int, ...], itemsize: int, most: int) -> tuple[int, ...]:
    """Chunks of at most `most` bytes that are runs of the array in its own order, all of one size.

    >>> chunk_shape((6, 4), 4, 48), chunk_shape((6, 40), 4, 48), chunk_shape((6, 4), 4, 1000)
    ((3, 4), (1, 10), (6, 4))
    """
    chunks = list(shape)
    for axis, n in enumerate(shape):
        below = math.prod(shape[axis + 1 :]) * itemsize
        fits = max(1, most // below) if below else n
        chunks[axis] = max((k for k in range(1, min(n, fits) + 1) if n % k == 0), default=1)
        if below <= most:
            break
    return tuple(chunks)
