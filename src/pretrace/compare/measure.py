"""The sums of every pair of tensors, in one pass over both checkpoints (and the base)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

import pretrace.compare.plain as plain
from pretrace.checkpoint.view import TensorInfo
from pretrace.compare.kernels import kernels
from pretrace.compare.pairing import Pair, Pairing
from pretrace.compare.passes import COMPILE_ABOVE, Advance, Chunk, Reader, as_stored, chunks, common_format, each, widen
from pretrace.compare.plain import BLOCK, Counts, Reals
from pretrace.compare.result import Sums, of_blocks
from pretrace.dtypes import dtype


def measure(pairing: Pairing, pairs: Sequence[Pair], threads: int, advance: Advance | None) -> list[Sums]:
    """The sums of every pair, in one pass over all of them."""
    passes = [_Pass(pairing, pair) for pair in pairs]
    total = sum(p.numel for p in passes)
    compiled = total >= COMPILE_ABOVE
    readers = [Reader(view) for view in (pairing.a, pairing.b, pairing.base) if view is not None]

    def work(chunk: Chunk) -> None:
        passes[chunk.tensor].take(chunk, readers, compiled)
        if advance is not None:
            advance(passes[chunk.tensor].bytes_of(chunk))

    order = as_stored([pair.in_a for pair in pairs], pairing.a, pairing.b)
    each(work, chunks([p.numel for p in passes], order), threads)
    return [p.result() for p in passes]


class _Pass:
    """One pair of tensors: the sums of its blocks as they come in, from whichever thread."""

    def __init__(self, pairing: Pairing, pair: Pair) -> None:
        self._pair, self._infos = pair, [pairing.a.info(pair.in_a), pairing.b.info(pair.in_b)]
        if pairing.base is not None and pair.in_a in pairing.base.names():
            info = pairing.base.info(pair.in_a)
            if info.shape == self._infos[0].shape:
                self._infos.append(info)
        self.numel = numel_of(self._infos[0], pair.rows)
        self._format = common_format(self._infos[0].dtype, self._infos[1].dtype)
        for info in self._infos[2:]:
            self._format = self._format if info.dtype == self._format else common_format(self._format, info.dtype)
        blocks = -(-self.numel // BLOCK)
        self._sums: Reals = np.zeros((blocks, plain.PAIR_SUMS))
        self._update: Reals | None = np.zeros((blocks, plain.TRIPLE_SUMS)) if len(self._infos) == 3 else None
        self._counts: Counts = np.zeros(plain.PAIR_COUNTS, dtype=np.int64)
        self._lock = threading.Lock()

    def take(self, chunk: Chunk, readers: list[Reader], compiled: bool) -> None:
        """Reads a chunk of both (and of the base) and keeps its sums."""
        names = (self._pair.in_a, self._pair.in_b, self._pair.in_a)
        wide = [
            widen(reader.read(name, chunk), info.dtype, self._format)
            for reader, name, info in zip(readers, names, self._infos, strict=False)
        ]
        made = kernels(self._format, "pair", compiled=compiled)
        self._sums[chunk.blocks], counts = made.pair(wide[0], wide[1])
        if self._update is not None:
            self._update[chunk.blocks] = made.triple(*wide)
        with self._lock:
            self._counts += counts.sum(axis=0)

    def bytes_of(self, chunk: Chunk) -> int:
        """Bytes read for the chunk."""
        return sum(dtype(info.dtype).size_bytes(chunk.stop - chunk.start) for info in self._infos)

    def result(self) -> Sums:
        """The sums of the whole tensor."""
        same = self._infos[0].dtype == self._infos[1].dtype == self._format
        return of_blocks(self.numel, self._sums, self._counts, self._update, same)


def numel_of(info: TensorInfo, rows: int) -> int:
    """Elements that are compared: all, or those of the first rows."""
    return info.numel // info.shape[0] * rows if rows else info.numel
