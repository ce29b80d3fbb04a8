"""Draws of MT19937 as torch and llm.c make them from a seed: by number, so that nothing is remembered.

torch's CPU generator and llm.c's are MT19937 seeded as numpy's legacy one is; they differ from numpy in how a draw becomes a
number below n: the remainder, without rejection. For ranges from a threshold on torch takes 64 bits: 2^28 in torch 2.13
(measured), 2^32 in older versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16


class Draws:
    """The tempered 32-bit outputs of a seed, by number. States are kept every 65,536 draws."""

    def __init__(self, seed: int) -> None:
        key: Any = tuple(np.random.RandomState(seed & 0xFFFFFFFF).get_state())[1]
        self._generator = np.random.MT19937()
        self._generator.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": 624}}
        self._states = [self._generator.state]
        self._at, self._block = -1, np.zeros(0, np.uint32)
        self._next = 0

    def get(self, number: int) -> int:
        """Draw `number` (from 0)."""
        block, inside = divmod(number, _BLOCK)
        if block != self._at:
            self._load(block)
        return int(self._block[inside])

    def next(self) -> int:
        """The draw after the last `next`."""
        self._next += 1
        return self.get(self._next - 1)

    def _load(self, block: int) -> None:
        while len(self._states) <= block:
            self._generator.state = self._states[-1]
            self._generator.random_raw(_BLOCK, output=False)
            self._states.append(self._generator.state)
        self._generator.state = self._states[block]
        self._block = self._generator.random_raw(_BLOCK).astype(np.uint32)
        self._at = block

    def bounded(self, number: int, bound: int, *, wide: bool) -> int:
        """torch's number below `bound` from draw `number`, or from two of them, the first as the high half."""
        if wide:
            return (self.get(number) << 32 | self.get(number + 1)) % bound
        return self.get(number) % bound


def permutation_llmc(items: NDArray[Any], draws: Draws) -> None:
    """llm.c's random_permutation, in place: for i = n-1 .. 1, swap i with a draw modulo i + 1."""
    for i in range(len(items) - 1, 0, -1):
        j = draws.next() % (i + 1)
        items[i], items[j] = items[j], items[i]


def permutation_torch(n: int, seed: int) -> NDArray[np.int64]:
    """torch.randperm(n) of a CPU generator seeded with `seed`."""
    from pretrace.data.kernels import randperm

    key: Any = tuple(np.random.RandomState(seed & 0xFFFFFFFF).get_state())[1]
    items = np.arange(n, dtype=np.int64)
    randperm(items, np.array(key, np.uint32))
    return items


def permutation_torch_plain(n: int, seed: int) -> NDArray[np.int64]:
    """The same without the compiled loop: for i = 0 .. n-2, swap i with i + draw modulo (n - i)."""
    draws, items = Draws(seed), np.arange(n, dtype=np.int64)
    for i in range(n - 1):
        j = i + draws.next() % (n - i)
        items[i], items[j] = items[j], items[i]
    return items
