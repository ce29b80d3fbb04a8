"""A small file that stands for a checkpoint: two labs compare a model of any size by mail.

Per tensor: hash, moments, a map of all-zero blocks, and 16 random projections. Equal hashes mean equal bytes. Where they
differ, the projections estimate the distance: with signs s, E[(s.a - s.b)^2] = |a - b|^2, and 16 of them over many
tensors average.

Sign of element e for projection j: a fixed vector of 65,536 signs times the sign of the block. Both come from SplitMix64,
so that any program can make the same projections from this description.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace import __version__
from pretrace.checkpoint.view import StateView
from pretrace.compare.passes import Advance, Chunk, Reader, as_stored, chunks, each, widen
from pretrace.compare.plain import BLOCK
from pretrace.compare.result import one_minus_cos
from pretrace.compare.statistics import TensorStatistics, statistics
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.files import read_json, write_text

FORMAT = "pretrace-fingerprint"
PROJECTIONS = 16


@dataclass(frozen=True, slots=True)
class TensorPrint:
    """What is kept of one tensor."""

    name: str
    canonical: str
    dtype: str
    shape: tuple[int, ...]
    hash: str
    mean: float
    std: float
    norm: float
    low: float
    high: float
    zeros: int
    nonfinite: int
    zero_blocks: tuple[tuple[int, int], ...]  # runs [start, stop) of blocks of 65,536 elements that hold only zeros
    projections: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A checkpoint in a few hundred bytes a tensor."""

    path: str
    format: str
    tensors: tuple[TensorPrint, ...]


def fingerprint(
    view: StateView, path: str, *, threads: int | None = None, advance: Advance | None = None
) -> Fingerprint:
    """The fingerprint of a checkpoint; reads every tensor twice.

    Raises
    ------
    PretraceError
        If a file cannot be read.
    """
    table = statistics(view, threads=threads, advance=advance)
    projected = _project(view, table.tensors, threads or min(os.cpu_count() or 1, 4), advance)
    made = tuple(_print(t, p) for t, p in zip(table.tensors, projected, strict=True))
    return Fingerprint(path, view.format, made)


def write(found: Fingerprint, path: str | Path) -> None:
    """Writes a fingerprint as JSON, one line a tensor."""
    head = {
        "format": FORMAT,
        "version": 1,
        "made_by": f"pretrace {__version__}",
        "of": found.path,
        "stored_as": found.format,
    }
    rows = [json.dumps({**_plain(t), "name": t.name}) for t in found.tensors]
    body = ",\n  ".join(rows)
    write_text(path, json.dumps(head)[:-1] + f', "tensors": [\n  {body}\n]}}\n')


def read(path: str | Path) -> Fingerprint:
    """Reads a fingerprint.

    Raises
    ------
    PretraceError
        If the file is no fingerprint, or one of a later version.
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PretraceError(
            "not a fingerprint", str(path), "make one with: pretrace audit CHECKPOINT --fingerprint FILE"
        )
    if data.get("version") != 1:
        raise PretraceError(
            f"a fingerprint of version {data.get('version')}", str(path), "read it with a later pretrace"
        )
    try:
        return Fingerprint(str(data["of"]), str(data["stored_as"]), tuple(_tensor(row) for row in data["tensors"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PretraceError(f"the fingerprint is damaged: {error}", str(path), "make it again") from None


def is_fingerprint(path: str | Path) -> bool:
    """Whether the file says that it is one; a pipe or a device is not asked."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return FORMAT.encode() in file.read(64)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class PrintDifference:
    """Two fingerprints side by side; distances are estimates from projections, with their relative standard error."""

    same: bool
    equal_tensors: int
    different: tuple[str, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    l2: float
    rel_l2: float
    one_minus_p_cos: float
    error: float

    def summary(self) -> dict[str, object]:
        """The object that `--json` prints."""
        return {"estimated": True, "p_cos": 1 - self.one_minus_p_cos, **asdict(self)}


def distance(a: Fingerprint, b: Fingerprint) -> PrintDifference:
    """Which tensors are equal, and about how far the others are apart."""
    left, right = {t.name: t for t in a.tensors}, {t.name: t for t in b.tensors}
    common = sorted(left.keys() & right.keys())
    unlike = [
        n
        for n in common
        if (left[n].hash, left[n].dtype, left[n].shape) != (right[n].hash, right[n].dtype, right[n].shape)
    ]
    squares = {n: _squared(left[n], right[n]) for n in unlike}
    dd = math.fsum(squares.values())
    aa, bb = (math.fsum(side[n].norm ** 2 for n in common) for side in (left, right))
    weight = math.fsum(x * x for x in squares.values())
    return PrintDifference(
        same=not unlike and left.keys() == right.keys(), equal_tensors=len(common) - len(unlike), different=tuple(unlike),
        only_in_a=tuple(sorted(left.keys() - right.keys())), only_in_b=tuple(sorted(right.keys() - left.keys())),
        l2=math.sqrt(dd), rel_l2=math.sqrt(dd / aa) if aa else math.nan,
        one_minus_p_cos=one_minus_cos(aa, bb, (aa + bb - dd) / 2, dd),
        # (s.d)^2 has mean |d|^2 and variance up to 2 |d|^4; the error of l2 is half that of its square.
        error=math.sqrt(2 * weight / PROJECTIONS) / dd / 2 if dd else 0.0,
    )  # fmt: skip


def _squared(a: TensorPrint, b: TensorPrint) -> float:
    if a.shape != b.shape:
        return math.nan
    return math.fsum((x - y) ** 2 for x, y in zip(a.projections, b.projections, strict=True)) / PROJECTIONS


def _print(t: TensorStatistics, projections: tuple[float, ...]) -> TensorPrint:
    sizes = np.full(t.zeros_by_block.size, BLOCK)
    if sizes.size:
        sizes[-1] = t.numel - (sizes.size - 1) * BLOCK
    empty = np.concatenate(([False], t.zeros_by_block == sizes, [False])).astype(np.int8)
    edges = np.flatnonzero(np.diff(empty)).tolist()
    blocks = tuple(zip(edges[::2], edges[1::2], strict=True))
    return TensorPrint(t.name, t.canonical, t.dtype, t.shape, t.hash, t.mean, t.std, t.norm, t.low, t.high, t.zeros,
                       t.nonfinite, blocks, projections)  # fmt: skip


def _project(
    view: StateView, tensors: tuple[TensorStatistics, ...], threads: int, advance: Advance | None
) -> list[tuple[float, ...]]:
    """The projections of every tensor, summed by `fsum` over blocks."""
    parts: list[dict[int, NDArray[np.float64]]] = [{} for _ in tensors]
    reader, lock = Reader(view), threading.Lock()

    def work(chunk: Chunk) -> None:
        tensor = tensors[chunk.tensor]
        stored = reader.read(tensor.name, chunk)
        rows = _blocks(widen(stored, tensor.dtype, "float64"))
        made = (rows @ _signs()) * _block_signs(chunk.start // BLOCK, rows.shape[0])
        with lock:
            parts[chunk.tensor][chunk.start] = made
        if advance is not None:
            advance(dtype(tensor.dtype).size_bytes(chunk.stop - chunk.start))

    order = as_stored([t.name for t in tensors], view)
    each(work, chunks([t.numel for t in tensors], order), threads)
    return [_added(found) for found in parts]


def _added(parts: Mapping[int, NDArray[np.float64]]) -> tuple[float, ...]:
    if not parts:
        return (0.0,) * PROJECTIONS
    rows = np.concatenate([parts[start] for start in sorted(parts)])
    return tuple(math.fsum(column) if np.isfinite(column).all() else math.nan for column in rows.T.tolist())


def _blocks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = -(-values.size // BLOCK)
    padded = np.zeros((rows, BLOCK))
    padded.reshape(-1)[: values.size] = values
    return padded


@lru_cache(maxsize=1)
def _signs() -> NDArray[np.float64]:
    """[65536, 16] of -1 and 1: bit j of SplitMix64(e) for element e."""
    bits = _split_mix(np.arange(BLOCK, dtype=np.uint64))
    return np.where((bits[:, None] >> np.arange(PROJECTIONS, dtype=np.uint64)) & np.uint64(1), 1.0, -1.0)


def _block_signs(first: int, count: int) -> NDArray[np.float64]:
    """[count, 16]: bit 16 + j of SplitMix64(2^32 + block)."""
    bits = _split_mix(np.arange(first, first + count, dtype=np.uint64) + np.uint64(1 << 32))
    return np.where((bits[:, None] >> np.arange(16, 16 + PROJECTIONS, dtype=np.uint64)) & np.uint64(1), 1.0, -1.0)


def _split_mix(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _plain(t: TensorPrint) -> dict[str, Any]:
    values = {name: getattr(t, name) for name in TensorPrint.__dataclass_fields__}
    # JSON has no NaN: a number that is not finite is written as its name.
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else _listed(v) for k, v in values.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in value]
    return value


def _tensor(row: Mapping[str, Any]) -> TensorPrint:
    return TensorPrint(
        str(row["name"]), str(row["canonical"]), str(row["dtype"]), tuple(int(n) for n in row["shape"]), str(row["hash"]),
        float(row["mean"]), float(row["std"]), float(row["norm"]), float(row["low"]), float(row["high"]),
        int(row["zeros"]), int(row["nonfinite"]),
        tuple((int(a), int(b)) for a, b in row["zero_blocks"]), tuple(float(x) for x in row["projections"]),
    )  # fmt: skip
