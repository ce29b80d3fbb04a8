"""Reduction orders as data: who is added to whom, for every element of a buffer. No tensor here.

A `Nesting` says how the copies of the ranks are added: a number is a rank's own copy, a tuple is the sum of its members from left
to right. gloo's ring over 4 ranks adds chunk 2 as (1, 0, 3, 2) = ((g1 + g0) + g3) + g2; a tree is ((0, 1), (2, 3)).

What is verified against the real thing, and what is declared from reading sources, stands in `docs/virtual-ranks.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pretrace.errors import PretraceError
from pretrace.spec import Spec
from pretrace.step.nccl import double_tree, ring_ranges, scatter_ranges
from pretrace.step.nesting import Nesting, ranks_of

Collective = Literal["all_reduce", "reduce_scatter"]


@dataclass(frozen=True, slots=True)
class Path:
    """Elements start..stop of a buffer are summed in this nesting."""

    start: int
    stop: int
    nesting: Nesting


class _Order(Spec):
    # "wire": every addition is rounded to the wire dtype (gloo, NCCL rings and trees); "float32": added wide, rounded once.
    sum_dtype: Literal["wire", "float32"]


class Direct(_Order):
    """Rank 0 first, then 1, 2, ... one after another."""

    kind: Literal["direct"] = "direct"


class Tree(_Order):
    """Neighbours first: ((0, 1), (2, 3)), ...; a rest that is no power of two is added as it stands."""

    kind: Literal["tree"] = "tree"


class GlooRing(_Order):
    """gloo's ring all-reduce, which torch uses on CPUs. Its reduce-scatter is the all-reduce of the whole buffer."""

    kind: Literal["gloo_ring"] = "gloo_ring"
    max_segment_bytes: PositiveInt  # 1 MiB in every gloo that torch shipped


class NcclRing(_Order):
    """NCCL's ring: chunk c starts at the successor of its owner. Rings, channels and chunk sizes are declared."""

    kind: Literal["nccl_ring"] = "nccl_ring"
    rings: tuple[tuple[NonNegativeInt, ...], ...]  # for each channel the ranks in ring order
    chunk_bytes: PositiveInt  # of one rank in one loop


class NcclTree(_Order):
    """NCCL's double binary tree over nodes, a chain within each node; each tree serves half of the buffer. Declared."""

    kind: Literal["nccl_tree"] = "nccl_tree"
    ranks_per_node: PositiveInt


class Exact(Spec):
    """Sums of integers: x counts as round(x * 2^exponent) in 64 bits, so the order cannot matter. See `docs/step-plan.md`."""

    kind: Literal["exact"] = "exact"
    exponent: Annotated[int, Field(ge=0, le=126)]  # the quantum is 2^-exponent, the range +-2^(63 - exponent)


class RecordedRange(Spec):
    """What a probe saw for elements start..stop."""

    start: NonNegativeInt
    stop: PositiveInt
    nesting: Nesting


class RecordedBuffer(Spec):
    """What a probe saw for buffers of one size."""

    numel: PositiveInt
    ranges: tuple[RecordedRange, ...]


class Recorded(_Order):
    """An order that `pretrace probe` found on the cluster of the original run."""

    kind: Literal["recorded"] = "recorded"
    where: str  # cluster, backend and version that were probed
    buffers: tuple[RecordedBuffer, ...]


OrderSpec = Annotated[Direct | Tree | GlooRing | NcclRing | NcclTree | Exact | Recorded, Field(discriminator="kind")]
Summed = Direct | Tree | GlooRing | NcclRing | NcclTree | Recorded  # every order that has a nesting


def paths(order: Summed, numel: int, itemsize: int, world_size: int, collective: Collective) -> tuple[Path, ...]:
    """The nesting of every element of a buffer of `numel` elements of `itemsize` bytes on the wire.

    The ranges follow each other without gaps and none is empty.

    Raises
    ------
    PretraceError
        If a recorded order does not know a buffer of that size.
    """
    if world_size == 1:
        return (Path(0, numel, 0),) if numel else ()
    match order:
        case Direct():
            found = [Path(0, numel, tuple(range(world_size)))]
        case Tree():
            found = [Path(0, numel, tree_nesting(0, world_size))]
        case GlooRing():
            bounds = gloo_chunks(numel, itemsize, world_size, order.max_segment_bytes)
            found = [Path(a, b, gloo_chain(c, world_size)) for c, (a, b) in enumerate(bounds)]
        case NcclRing():
            scatter = collective == "reduce_scatter"
            ring = scatter_ranges if scatter else ring_ranges
            found = [Path(*piece) for piece in ring(order.rings, order.chunk_bytes, numel, itemsize)]
        case NcclTree():
            half = numel // 2
            trees = [double_tree(world_size, order.ranks_per_node, mirror) for mirror in (False, True)]
            found = [Path(0, half, trees[0]), Path(half, numel, trees[1])]
        case Recorded():
            found = _recorded(order, numel)
    return tuple(path for path in found if path.stop > path.start)


def gloo_chunks(numel: int, itemsize: int, world_size: int, max_segment_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """Element ranges that each rank finishes in gloo's ring; trailing ones may be short or empty (gloo/allreduce.cc).

    >>> gloo_chunks(10, 4, 2)
    [(0, 6), (6, 10)]
    """
    total = numel * itemsize
    cap = itemsize * max(1, max_segment_bytes // itemsize)
    segments = _up(max(-(-total // cap), 2 * world_size), world_size)
    segment = _up(-(-total // segments), itemsize)
    chunk = (segments // world_size) * segment // itemsize
    return [(min(c * chunk, numel), min((c + 1) * chunk, numel)) for c in range(world_size)]


def gloo_chain(chunk: int, world_size: int) -> tuple[int, ...]:
    """Ranks as their copy of `chunk` is added: chunk-1, ..., 0, world_size-1, ..., chunk; the owner comes last.

    >>> gloo_chain(2, 4)
    (1, 0, 3, 2)
    """
    return tuple((chunk - 1 - k) % world_size for k in range(world_size))


def tree_nesting(start: int, stop: int) -> Nesting:
    """The binary counter's tree over ranks start..stop.

    >>> tree_nesting(0, 5)
    (((0, 1), (2, 3)), 4)
    """
    if stop - start == 1:
        return start
    left = 1 << ((stop - start - 1).bit_length() - 1)
    return (tree_nesting(start, start + left), tree_nesting(start + left, stop))


def refuse_incomplete(order: OrderSpec, world_size: int) -> None:
    """Refuses an order that misses a rank, names one twice, or leaves a gap in a buffer."""
    if isinstance(order, NcclRing):
        for channel, ring in enumerate(order.rings):
            _refuse_ranks(list(ring), world_size, f"step.reduction.order.rings[{channel}]")
        if not order.rings:
            raise PretraceError("the order has no ring", "step.reduction.order.rings", "declare one ring a channel")
    if isinstance(order, NcclTree) and world_size % order.ranks_per_node:
        raise PretraceError(
            f"{world_size} ranks do not fill nodes of {order.ranks_per_node}",
            "step.reduction.order.ranks_per_node",
            "give the number of ranks on each node",
        )
    if isinstance(order, Recorded):
        for buffer in order.buffers:
            _refuse_buffer(buffer, world_size)


def _refuse_ranks(ranks: list[int], world_size: int, where: str) -> None:
    if sorted(ranks) == list(range(world_size)):
        return
    missing = sorted(set(range(world_size)) - set(ranks))
    odd = sorted({r for r in ranks if ranks.count(r) > 1 or r >= world_size})
    faults = [f"misses rank {r}" for r in missing[:4]] + [
        f"names rank {r} too often or beyond the world" for r in odd[:4]
    ]
    raise PretraceError(
        f"the order {' and '.join(faults)}", where, f"name each of the ranks 0 to {world_size - 1} once"
    )


def _refuse_buffer(buffer: RecordedBuffer, world_size: int) -> None:
    where = f"step.reduction.order.buffers (numel {buffer.numel})"
    at = 0
    for piece in buffer.ranges:
        _refuse_ranks(ranks_of(piece.nesting), world_size, where)
        if piece.start != at or piece.stop <= piece.start:
            raise PretraceError(f"the recorded ranges have a gap or overlap at element {at}", where, "probe again")
        at = piece.stop
    if at != buffer.numel:
        raise PretraceError(f"the recorded ranges end at {at} of {buffer.numel} elements", where, "probe again")


def _recorded(order: Recorded, numel: int) -> list[Path]:
    for buffer in order.buffers:
        if buffer.numel == numel:
            return [Path(piece.start, piece.stop, piece.nesting) for piece in buffer.ranges]
    known = ", ".join(str(buffer.numel) for buffer in order.buffers)
    raise PretraceError(
        f"the recorded order knows no buffer of {numel} elements (it knows {known})",
        order.where,
        "probe this size on the same cluster, or declare another order",
    )


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
