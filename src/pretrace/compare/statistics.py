"""What one pass over a checkpoint keeps of every tensor: moments, extremes, zeros by block, and a hash of its content."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

import pretrace.compare.plain as plain
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.compare.kernels import kernels
from pretrace.compare.names import Names, kind_of, layer_of, names_of
from pretrace.compare.passes import COMPILE_ABOVE, Advance, Chunk, Reader, as_stored, chunks, common_format, each, widen
from pretrace.compare.plain import BLOCK, Counts, Reals
from pretrace.dtypes import dtype


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """One tensor in numbers. Sums are float64 by blocks of 65,536, added by `fsum`; NaN where values are not finite."""

    name: str
    canonical: str  # '' where no table knows the name
    dtype: str
    shape: tuple[int, ...]
    where: str
    numel: int
    mean: float
    std: float
    norm: float
    max_abs: float
    low: float
    high: float
    zeros: int
    nonfinite: int
    subnormal: int
    hash: str  # of the elements' bytes, whatever file or format holds them
    zeros_by_block: NDArray[np.int64] = field(compare=False, repr=False)

    @property
    def rms(self) -> float:
        """Root mean square of the elements."""
        return self.norm / math.sqrt(self.numel) if self.numel else 0.0

    @property
    def constant(self) -> bool:
        """Whether all elements are one finite value."""
        return self.numel > 0 and self.nonfinite == 0 and self.low == self.high

    @property
    def layer(self) -> str:
        """The number of the layer, '' outside the layers."""
        return layer_of(self.canonical or self.name)

    @property
    def kind(self) -> str:
        """The name without the layer."""
        return kind_of(self.canonical or self.name)


@dataclass(frozen=True)
class Table:
    """The statistics of all tensors that hold numbers, in name order, and how they are called."""

    tensors: tuple[TensorStatistics, ...]
    names: Names
    not_read: tuple[TensorInfo, ...]  # tensors whose format is only listed (packed, complex)

    def of(self, canonical: str) -> TensorStatistics | None:
        """The tensor of that canonical name."""
        return next((t for t in self.tensors if t.canonical == canonical), None)

    def by_kind(self) -> dict[str, list[TensorStatistics]]:
        """The tensors inside the layers, by kind, in the order of the layers."""
        kinds: dict[str, list[TensorStatistics]] = {}
        for tensor in sorted((t for t in self.tensors if t.layer), key=lambda t: int(t.layer)):
            kinds.setdefault(tensor.kind, []).append(tensor)
        return kinds


def statistics(view: StateView, *, threads: int | None = None, advance: Advance | None = None) -> Table:
    """Reads every tensor once. The result is the same bits for any number of threads, shards or storage format.

    Raises
    ------
    PretraceError
        If a file cannot be read.
    """
    names = names_of(view)
    infos = [view.info(name) for name in sorted(view.names())]
    readable = [info for info in infos if dtype(info.dtype).bits % 8 == 0 and dtype(info.dtype).kind != "complex"]
    passes = [_Pass(info, names.of.get(info.name, "")) for info in readable]
    reader, compiled = Reader(view), sum(info.numel for info in readable) >= COMPILE_ABOVE

    def work(chunk: Chunk) -> None:
        passes[chunk.tensor].take(chunk, reader, compiled)
        if advance is not None:
            advance(dtype(readable[chunk.tensor].dtype).size_bytes(chunk.stop - chunk.start))

    order = as_stored([info.name for info in readable], view)
    each(work, chunks([info.numel for info in readable], order), threads or min(os.cpu_count() or 1, 4))
    skipped = tuple(info for info in infos if info not in readable)
    return Table(tuple(p.result() for p in passes), names, skipped)


class _Pass:
    """One tensor: the sums of its blocks and the hashes of its chunks, from whichever thread."""

    def __init__(self, info: TensorInfo, canonical: str) -> None:
        self._info, self._canonical = info, canonical
        self._format = common_format(info.dtype, info.dtype)
        blocks = -(-info.numel // BLOCK)
        self._sums: Reals = np.zeros((blocks, plain.SINGLE_SUMS))
        self._counts: Counts = np.zeros((blocks, plain.SINGLE_COUNTS), dtype=np.int64)
        self._hashes: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def take(self, chunk: Chunk, reader: Reader, compiled: bool) -> None:
        stored = reader.read(self._info.name, chunk)
        digest = xxhash.xxh3_128_digest(stored.data.cast("B"))
        made = kernels(self._format, "single", compiled=compiled)
        self._sums[chunk.blocks], self._counts[chunk.blocks] = made.single(
            widen(stored, self._info.dtype, self._format)
        )
        with self._lock:
            self._hashes[chunk.start] = digest

    def result(self) -> TensorStatistics:
        info, n = self._info, max(1, self._info.numel)
        total, squares = _fsum(self._sums[:, 0]), _fsum(self._sums[:, 1])
        mean = total / n
        zeros, nonfinite, subnormal = self._counts.sum(axis=0).tolist()
        return TensorStatistics(
            info.name, self._canonical, info.dtype, info.shape, info.where, info.numel,
            mean=mean, std=math.sqrt(max(0.0, squares / n - mean * mean)) if math.isfinite(squares) else math.nan,
            norm=math.sqrt(squares), max_abs=_most(self._sums[:, 2], 0.0), low=-_most(-self._sums[:, 3], -math.inf),
            high=_most(self._sums[:, 4], -math.inf), zeros=zeros, nonfinite=nonfinite, subnormal=subnormal,
            hash=self._hash(), zeros_by_block=self._counts[:, 0].copy(),
        )  # fmt: skip

    def _hash(self) -> str:
        state = xxhash.xxh3_128()
        for start in sorted(self._hashes):
            state.update(self._hashes[start])
        return state.hexdigest()


def summary(tensor: TensorStatistics) -> dict[str, Any]:
    """One row of the table that `--stats` prints and saves."""
    return {
        "name": tensor.name, "canonical": tensor.canonical, "dtype": tensor.dtype, "shape": tensor.shape,
        "mean": tensor.mean, "std": tensor.std, "norm": tensor.norm, "low": tensor.low, "high": tensor.high,
        "zeros": tensor.zeros / max(1, tensor.numel), "nonfinite": tensor.nonfinite, "subnormal": tensor.subnormal,
        "hash": tensor.hash,
    }  # fmt: skip


def _most(values: Reals, start: float) -> float:
    return float(values.max(initial=start)) if values.size else 0.0


def _fsum(values: Reals) -> float:
    try:
        return math.fsum(values.tolist())
    except (OverflowError, ValueError):
        return math.nan
