"""From what `probe_collect` saw to an order that a plan can replay. No torch here.

Survivors of all pairs give, for each element, how many ranks lie under the addition where two ranks meet; that decides the tree
of additions. Addition of two numbers commutes, so a tree stands for all its mirror images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any, Literal

from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.files import read_json
from pretrace.step.orders import (
    Collective,
    Direct,
    GlooRing,
    Path,
    Recorded,
    RecordedBuffer,
    RecordedRange,
    Summed,
    Tree,
    paths,
)
from pretrace.step.probe_tree import Together, is_wide, meetings, tree

Verdict = Literal["order", "no-order-visible", "unstable", "no-tree"]

_WORDS: dict[Verdict, str] = {
    "order": "order found",
    "no-order-visible": "no order visible: the sum is wider than the wire and rounded once",
    "unstable": "no order recorded: it changes from call to call",
    "no-tree": "no order recorded: what was seen is no tree of roundings to the wire dtype",
}

_MENDS: dict[Verdict, str] = {
    "order": "",
    "no-order-visible": "declare order direct with sum_dtype float32: whatever the order, the wire's rounding comes once, last",
    "unstable": "pin the algorithm (NCCL_ALGO, NCCL_PROTO, no NVLS) and probe again; else compare by an envelope over orders",
    "no-tree": "compare by an envelope over orders",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe says about buffers of one size."""

    collective: str
    dtype: str
    world_size: int
    numel: int
    verdict: Verdict
    ranges: tuple[RecordedRange, ...]  # empty unless the verdict is "order"
    about: str

    @property
    def words(self) -> str:
        """The verdict in words."""
        return _WORDS[self.verdict]

    @property
    def mend(self) -> str:
        """What to do where no order was found."""
        return _MENDS[self.verdict]


def read(path: str | FilePath) -> list[Seen]:
    """The raw file of `probe_collect`, understood.

    Raises
    ------
    PretraceError
        If the file is not one of its files.
    """
    data = read_json(path)
    try:
        return [understand(buffer) for buffer in data["buffers"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PretraceError(f"not a raw file of the probe: {error}"[:200], str(path), "run the probe again") from None


def understand(raw: Mapping[str, Any]) -> Seen:
    """One buffer of a raw file."""
    world_size, numel = int(raw["world_size"]), int(raw["numel"])
    verdict: Verdict = "order"
    ranges: list[RecordedRange] = []
    if not raw["stable"]:
        verdict = "unstable"
    else:
        for start, stop, together in _pieces(raw["pairs"], world_size, numel):
            nesting = None if together is None else tree(together)
            if nesting is None:
                verdict = "no-order-visible" if together is not None and is_wide(together) else "no-tree"
                break
            ranges.append(RecordedRange(start=start, stop=stop, nesting=nesting))
    return Seen(str(raw["collective"]), str(raw["dtype"]), world_size, numel, verdict,
                _joined(ranges) if verdict == "order" else (), str(raw.get("about", "")))  # fmt: skip


def record(seen: Iterable[Seen], where: str = "") -> Recorded:
    """The order of a plan (`reduction.order`) that replays what was seen; one buffer for each size.

    Raises
    ------
    PretraceError
        If an order is not visible, or two sizes were seen with different orders.
    """
    buffers: dict[int, Seen] = {}
    for one in seen:
        if one.verdict != "order":
            raise PretraceError(one.words, f"{one.about}, {one.dtype}, {one.numel:,} elements", one.mend)
        other = buffers.setdefault(one.numel, one)
        if other.ranges != one.ranges:
            both = f"{other.collective} {other.dtype}, {one.collective} {one.dtype}"
            raise PretraceError(f"buffers of {one.numel:,} elements were seen in two orders ({both})", one.about,
                                "record one collective and one dtype in a file")  # fmt: skip
    if not buffers:
        raise PretraceError("nothing was probed", where, "probe at least one size")
    return Recorded(
        sum_dtype="wire",
        where=where or next(iter(buffers.values())).about,
        buffers=tuple(RecordedBuffer(numel=n, ranges=one.ranges) for n, one in sorted(buffers.items())),
    )


def _pieces(pairs: Iterable[Any], world_size: int, numel: int) -> Iterable[tuple[int, int, Together | None]]:
    """Ranges of elements that share one answer for every pair; None where a count is no number of ranks."""
    columns: dict[tuple[int, int], list[tuple[int, float]]] = {}
    edges = {0, numel}
    for i, j, runs in pairs:
        stops, at = [], 0
        for value, length in runs:
            at += int(length)
            stops.append((at, float(value)))
        if at != numel:
            raise ValueError(f"pair {i}, {j} covers {at} of {numel} elements")
        columns[int(i), int(j)] = stops
        edges |= {stop for stop, _ in stops}
    bounds = sorted(edges)
    at_run = dict.fromkeys(columns, 0)
    for start, stop in pairwise(bounds):
        values = {}
        for pair, stops in columns.items():
            while stops[at_run[pair]][0] <= start:
                at_run[pair] += 1
            values[pair] = stops[at_run[pair]][1]
        yield start, stop, _together(values, world_size)


def _together(values: Mapping[tuple[int, int], float], world_size: int) -> Together | None:
    table = [[1] * world_size for _ in range(world_size)]
    for (i, j), value in values.items():
        if not math.isfinite(value) or value != int(value) or not 0 <= value <= world_size - 2:
            return None
        table[i][j] = table[j][i] = world_size - int(value)
    return tuple(map(tuple, table))


def known_as(seen: Seen) -> list[str]:
    """Names of the orders that pretrace knows and that make the same additions, element by element."""
    if seen.verdict != "order":
        return []
    collective: Collective = "reduce_scatter" if seen.collective == "reduce_scatter" else "all_reduce"
    known: tuple[Summed, ...] = (
        GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20),
        Direct(sum_dtype="wire"),
        Tree(sum_dtype="wire"),
    )
    itemsize = dtype(seen.dtype).itemsize
    return [
        order.kind for order in known
        if _same(paths(order, seen.numel, itemsize, seen.world_size, collective), seen.ranges, seen.world_size)
    ]  # fmt: skip


def _same(a: Iterable[Path | RecordedRange], b: Iterable[Path | RecordedRange], world_size: int) -> bool:
    """Whether two lists of ranges make the same additions for every element."""

    def spread(pieces: Iterable[Path | RecordedRange]) -> list[tuple[int, int, Together]]:
        out: list[tuple[int, int, Together]] = []
        for piece in sorted(pieces, key=lambda p: p.start):
            together = meetings(piece.nesting, world_size)
            if out and out[-1][2] == together and out[-1][1] == piece.start:
                out[-1] = (out[-1][0], piece.stop, together)
            elif piece.stop > piece.start:
                out.append((piece.start, piece.stop, together))
        return out

    return spread(a) == spread(b)


def _joined(ranges: list[RecordedRange]) -> tuple[RecordedRange, ...]:
    """Neighbours with one nesting become one range."""
    out: list[RecordedRange] = []
    for piece in ranges:
        if out and out[-1].nesting == piece.nesting:
            out[-1] = RecordedRange(start=out[-1].start, stop=piece.stop, nesting=piece.nesting)
        else:
            out.append(piece)
    return tuple(out)
