"""Which gradients are reduced together, and in which order they lie in the buffer: bucket layouts as data. No tensor here.

The order of a ring differs from chunk to chunk, so the place of an element in its buffer decides how it is summed. A `Layout`
lists the pieces of one flat buffer that holds all buckets one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from pretrace.errors import PretraceError
from pretrace.spec import Spec

Phase = Literal["first", "later"]
_MIB = 1024 * 1024


class Whole(Spec):
    """One bucket with all parameters in the model's order."""

    kind: Literal["whole"] = "whole"


class Ddp(Spec):
    """DDP: one bucket at the first update, afterwards buckets in the order in which gradients arrive."""

    kind: Literal["ddp"] = "ddp"
    cap_mb: PositiveFloat  # bucket_cap_mb
    first_cap_mb: (
        PositiveFloat  # of the bucket that fills first: 1 MiB where bucket_cap_mb is left alone, else the same
    )
    # After a restart DDP is built anew and its first update has one bucket again; "kept" replays a run that never stopped.
    restart: Literal["anew", "kept"]


class Fsdp2(Spec):
    """fully_shard: one bucket a unit; rows of every parameter are dealt to ranks, padded, destination first."""

    kind: Literal["fsdp2"] = "fsdp2"
    units: tuple[str, ...]  # patterns of module names ("blocks.*"); what no unit holds belongs to the root


class Fsdp1(Spec):
    """FullyShardedDataParallel: one flat parameter a unit."""

    kind: Literal["fsdp1"] = "fsdp1"
    units: tuple[str, ...]
    sharded: bool  # FULL_SHARD pads a flat parameter to a multiple of the world size; NO_SHARD reduces it as it is
    use_orig_params: bool  # parameters then start at multiples of 16 bytes


class Capped(Spec):
    """Parameters in order; a bucket is closed once it holds more than `cap_numel` elements (DeepSpeed)."""

    kind: Literal["capped"] = "capped"
    cap_numel: PositiveInt


class Listed(Spec):
    """Buckets written out by parameter names, as recorded from a run."""

    kind: Literal["listed"] = "listed"
    first: tuple[tuple[str, ...], ...]
    later: tuple[tuple[str, ...], ...]


BucketSpec = Annotated[Whole | Ddp | Fsdp2 | Fsdp1 | Capped | Listed, Field(discriminator="kind")]
AnyBuckets = Whole | Ddp | Fsdp2 | Fsdp1 | Capped | Listed


@dataclass(frozen=True, slots=True)
class Param:
    """What a layout must know of a parameter."""

    name: str
    shape: tuple[int, ...]
    itemsize: int  # bytes of one element of its gradient

    @property
    def numel(self) -> int:
        """Elements."""
        n = 1
        for axis in self.shape:
            n *= axis
        return n


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements start..stop of parameter number `param` (row-major) lie at `at` in the buffer."""

    param: int
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A flat buffer: where every parameter lies (what no piece covers is zero padding), and where its buckets end."""

    numel: int
    pieces: tuple[Piece, ...]
    buckets: tuple[tuple[int, int], ...]  # start and stop of each bucket

    @property
    def padding(self) -> int:
        """Elements that belong to no parameter."""
        return self.numel - sum(piece.stop - piece.start for piece in self.pieces)


def phase_of(spec: AnyBuckets, *, step: int, updates_since_start: int) -> Phase:
    """Whether the update after `step` updates uses the layout of a first one."""
    anew = isinstance(spec, Ddp) and spec.restart == "anew"
    return "first" if step == 0 or (anew and updates_since_start == 0) else "later"


def layout(
    spec: AnyBuckets, params: Sequence[Param], *, world_size: int, phase: Phase, arrival: Sequence[int] | None = None
) -> Layout:
    """The buffer of one update.

    Parameters
    ----------
    params : all parameters in the model's order.
    arrival : numbers of the parameters in the order in which the backward pass finishes their gradients; asked for by
        `Ddp` after its first update.

    Raises
    ------
    PretraceError
        If listed buckets do not hold every parameter once.
    """
    match spec:
        case Whole():
            return _in_order([list(range(len(params)))], params)
        case Ddp():
            if phase == "first":
                return _in_order([list(range(len(params)))], params)
            assert arrival is not None, "DDP's later buckets follow the order of arrival"
            return _in_order(ddp_buckets(arrival, params, spec.first_cap_mb, spec.cap_mb), params)
        case Capped():
            return _in_order(_capped(params, spec.cap_numel), params)
        case Listed():
            return _in_order(_listed(spec.first if phase == "first" else spec.later, params), params)
        case Fsdp2():
            return _dealt(_units(spec.units, params), params, world_size)
        case Fsdp1():
            aligned = 16 // params[0].itemsize if spec.use_orig_params else 1
            whole = world_size if spec.sharded or spec.use_orig_params else 1
            return _in_order(_units(spec.units, params), params, multiple=whole, aligned=aligned)


def ddp_buckets(arrival: Sequence[int], params: Sequence[Param], first_cap_mb: float, cap_mb: float) -> list[list[int]]:
    """DDP's rebuilt buckets: a bucket is closed once it holds at least its cap (torch, reducer.cpp)."""
    caps = [int(first_cap_mb * _MIB), int(cap_mb * _MIB)]
    found: list[list[int]] = []
    open_bucket: list[int] = []
    size = 0
    for number in arrival:
        open_bucket.append(number)
        size += params[number].numel * params[number].itemsize
        if size >= caps[min(len(found), 1)]:
            found.append(open_bucket)
            open_bucket, size = [], 0
    return found + ([open_bucket] if open_bucket else [])


def _capped(params: Sequence[Param], cap: int) -> list[list[int]]:
    found: list[list[int]] = []
    open_bucket: list[int] = []
    size = 0
    for number, param in enumerate(params):
        open_bucket.append(number)
        size += param.numel
        if size > cap:
            found.append(open_bucket)
            open_bucket, size = [], 0
    return found + ([open_bucket] if open_bucket else [])


def _listed(names: tuple[tuple[str, ...], ...], params: Sequence[Param]) -> list[list[int]]:
    number = {param.name: i for i, param in enumerate(params)}
    flat = [name for bucket in names for name in bucket]
    missing = sorted(number.keys() - set(flat))
    odd = sorted({name for name in flat if flat.count(name) > 1 or name not in number})
    if missing or odd:
        fault = (
            f"miss {missing[0]}" if missing else f"hold {odd[0]}, which the model has not or which stands there twice"
        )
        raise PretraceError(f"the listed buckets {fault}", "step.reduction.buckets", "list every parameter once")
    return [[number[name] for name in bucket] for bucket in names]


def _units(patterns: tuple[str, ...], params: Sequence[Param]) -> list[list[int]]:
    """Parameters by the module that a pattern matches, in order of appearance; the rest is one unit, last."""
    units: dict[str, list[int]] = {}
    root: list[int] = []
    for number, param in enumerate(params):
        unit = _unit_of(param.name, patterns)
        (root if unit is None else units.setdefault(unit, [])).append(number)
    return [*units.values(), root] if root else list(units.values())


def _unit_of(name: str, patterns: tuple[str, ...]) -> str | None:
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):  # the innermost unit owns its parameters
        module = ".".join(parts[:end])
        for pattern in patterns:
            if pattern.count(".") == module.count(".") and fnmatchcase(module, pattern):
                return module
    return None


def _in_order(buckets: list[list[int]], params: Sequence[Param], *, multiple: int = 1, aligned: int = 1) -> Layout:
    """Parameters one after another, each at a multiple of `aligned` elements, buckets padded to `multiple`."""
    at, pieces, bounds = 0, [], []
    for bucket in buckets:
        start = at
        for number in bucket:
            at = start - (start - at) // aligned * aligned
            pieces.append(Piece(number, 0, params[number].numel, at))
            at += params[number].numel
        at = start - (start - at) // multiple * multiple  # padded at the end
        bounds.append((start, at))
    return Layout(at, tuple(pieces), tuple(bounds))


def _dealt(buckets: list[list[int]], params: Sequence[Param], world_size: int) -> Layout:
    at, pieces, bounds = 0, [], []
    for bucket in buckets:
        start = at
        for rank in range(world_size):
            for number in bucket:
                row, share = _rows(params[number], world_size)
                a, b = min(rank * share, params[number].numel), min((rank + 1) * share, params[number].numel)
                if b > a:
                    pieces.append(Piece(number, a, b, at))
                at += share if row else 0
        bounds.append((start, at))
    return Layout(at, tuple(pieces), tuple(bounds))


def _rows(param: Param, world_size: int) -> tuple[int, int]:
    """Elements of one row, and of one rank's share (whole rows, the last shares padded)."""
    rows = param.shape[0] if param.shape else 1
    row = param.numel // rows if rows else 0
    return row, -(-rows // world_size) * row
