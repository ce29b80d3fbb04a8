"""What a comparison says, and the arithmetic that makes it from block sums.

1 - cos is computed from the summed squared difference, (D - (|a| - |b|)^2) / (2 |a| |b|), never by subtracting a cosine from
1: at 1 - cos = 5e-11 the subtraction of two float32 numbers is wrong by eight powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from pretrace.compare.plain import ULP_STEPS, Counts, Reals

# Labels of the histogram: distance in steps of the common number format (0: equal numbers, +0 and -0 among them).
ULP_LABELS = ("0", "1", "2", "3-4", "5-16", "17-64", "65-256", "257-4096", ">4096")


@dataclass(frozen=True, slots=True)
class Sums:
    """Everything that a pair of tensors is judged by; the sums of several pairs can be added."""

    numel: int
    aa: float
    bb: float
    ab: float
    dd: float
    max_abs: float
    equal_bits: int
    nonfinite_a: int
    nonfinite_b: int
    ulp: tuple[int, ...]  # one number a label of ULP_LABELS; empty where the formats differ
    update: tuple[float, float, float] | None = None  # u*u, v*v, u*v of the updates from the base


def of_blocks(numel: int, sums: Reals, counts: Counts, update: Reals | None, same_format: bool) -> Sums:
    """Adds up the blocks of one tensor: float64 [blocks, 5], the summed counts int64 [11], float64 [blocks, 3]."""
    aa, bb, ab, dd = (_fsum(sums[:, k]) for k in range(4))
    above = [numel, *counts[3:].tolist()]
    histogram = [above[k] - above[k + 1] for k in range(len(ULP_STEPS))] + [above[-1]]
    return Sums(
        numel, aa, bb, ab, dd,
        max_abs=float(sums[:, 4].max(initial=0.0)),
        equal_bits=int(counts[0]), nonfinite_a=int(counts[1]), nonfinite_b=int(counts[2]),
        ulp=tuple(histogram) if same_format else (),
        update=None if update is None else (_fsum(update[:, 0]), _fsum(update[:, 1]), _fsum(update[:, 2])),
    )  # fmt: skip


def together(parts: Iterable[Sums]) -> Sums:
    """The sums of several tensors as one long vector. `fsum` rounds once, so the order of the parts does not matter."""
    items = list(parts)
    updates = [p.update for p in items if p.update is not None]
    return Sums(
        numel=sum(p.numel for p in items),
        aa=_fsum([p.aa for p in items]), bb=_fsum([p.bb for p in items]),
        ab=_fsum([p.ab for p in items]), dd=_fsum([p.dd for p in items]),
        max_abs=max((p.max_abs for p in items), default=0.0),
        equal_bits=sum(p.equal_bits for p in items),
        nonfinite_a=sum(p.nonfinite_a for p in items), nonfinite_b=sum(p.nonfinite_b for p in items),
        ulp=tuple(sum(column) for column in zip(*(p.ulp for p in items if p.ulp), strict=True)),
        update=(_fsum([u[0] for u in updates]), _fsum([u[1] for u in updates]), _fsum([u[2] for u in updates]))
        if updates else None,
    )  # fmt: skip


def one_minus_cos(aa: float, bb: float, ab: float, dd: float) -> float:
    """1 - cosine of two vectors, from their squared norms, product and squared difference; NaN if one of them is zero.

    >>> one_minus_cos(1.0, 1.0, 0.0, 2.0)
    1.0
    """
    if not (math.isfinite(aa) and math.isfinite(bb) and aa > 0 and bb > 0):
        return 0.0 if aa == bb == 0.0 else math.nan
    na, nb = math.sqrt(aa), math.sqrt(bb)
    if ab < 0.5 * na * nb:
        return 1.0 - ab / math.sqrt(aa * bb) if 0 < aa * bb < math.inf else 1.0 - ab / na / nb
    return max(0.0, (dd - (na - nb) ** 2) / (2 * na * nb))


@dataclass(frozen=True, slots=True)
class Difference:
    """The numbers of one pair: a tensor, a layer, or everything.

    `bitwise_equal` is a share (1.0 only if all bits are equal), `unequal` the exact count of elements with other bits.
    `p_cos` is the cosine of the two vectors, `u_cos` that of their updates from a base. NaN: not defined (a zero vector)
    or not finite.
    """

    numel: int
    p_cos: float
    one_minus_p_cos: float
    l2: float
    rel_l2: float  # l2 / norm of A
    max_abs: float
    norm_a: float
    norm_b: float
    bitwise_equal: float
    unequal: int
    nonfinite_a: int
    nonfinite_b: int
    ulp: dict[str, int]
    u_cos: float | None = None
    one_minus_u_cos: float | None = None
    update_a: float | None = None  # norm of A - base
    update_b: float | None = None


def difference(sums: Sums) -> Difference:
    """The numbers that the sums give."""
    # No element at all is no agreement.
    apart = one_minus_cos(sums.aa, sums.bb, sums.ab, sums.dd) if sums.numel else math.nan
    norm_a, l2 = math.sqrt(sums.aa), math.sqrt(sums.dd)
    unequal = sums.numel - sums.equal_bits
    made = Difference(
        numel=sums.numel, p_cos=1.0 - apart, one_minus_p_cos=apart,
        l2=l2, rel_l2=l2 / norm_a if norm_a else (0.0 if l2 == 0 else math.inf), max_abs=sums.max_abs,
        norm_a=norm_a, norm_b=math.sqrt(sums.bb),
        bitwise_equal=sums.equal_bits / sums.numel if sums.numel else 1.0, unequal=unequal,
        nonfinite_a=sums.nonfinite_a, nonfinite_b=sums.nonfinite_b,
        ulp=dict(zip(ULP_LABELS, sums.ulp, strict=True)) if sums.ulp else {},
    )  # fmt: skip
    if sums.update is None:
        return made
    uu, vv, uv = sums.update
    apart = one_minus_cos(uu, vv, uv, sums.dd)
    return replace(made, u_cos=1.0 - apart, one_minus_u_cos=apart, update_a=math.sqrt(uu), update_b=math.sqrt(vv))


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One tensor of both checkpoints."""

    name: str  # as in A's file
    canonical: str  # '' where no table knows the name
    shape: tuple[int, ...]
    shape_b: tuple[int, ...]
    dtype: str
    dtype_b: str
    difference: Difference | None  # None: the shapes do not allow it
    move: str = ""  # the known move that makes B equal to A
    tool: str = ""  # where that move usually comes from
    note: str = ""

    @property
    def same_numbers(self) -> bool:
        """Whether every number agrees, under one shape: another dtype that holds them too, or another sign of a zero."""
        found = self.difference
        finite = found is not None and not found.nonfinite_a and not found.nonfinite_b
        return self.shape == self.shape_b and found is not None and finite and found.l2 == 0

    @property
    def same(self) -> bool:
        """Whether shape, dtype and every bit agree."""
        return (
            self.shape == self.shape_b
            and self.dtype == self.dtype_b
            and self.difference is not None
            and self.difference.unequal == 0
        )


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """All tensors of one layer ('' for those outside the layers)."""

    layer: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two checkpoints side by side."""

    a: str
    b: str
    base: str
    total: Difference
    tensors: tuple[TensorDifference, ...]
    layers: tuple[LayerDifference, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    not_compared: int = 0  # elements that the totals do not cover: of one side only, or of shapes that do not fit
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def same(self) -> bool:
        """Whether both hold the same tensors, bit for bit."""
        return not self.only_in_a and not self.only_in_b and all(t.same for t in self.tensors)

    @property
    def different(self) -> tuple[TensorDifference, ...]:
        """The tensors that are not the same, the most distant first."""
        return tuple(sorted((t for t in self.tensors if not t.same), key=_distance, reverse=True))

    def summary(self) -> dict[str, object]:
        """The object that `--json` prints: scripts rely on these keys."""
        return {
            "same": self.same, "a": self.a, "b": self.b, "base": self.base,
            **flat(self.total), "not_compared": self.not_compared,
            "only_in_a": self.only_in_a, "only_in_b": self.only_in_b,
            "tensors": [tensor_summary(t) for t in self.tensors],
            "layers": [{"layer": item.layer, **flat(item.difference)} for item in self.layers],
            "notes": self.notes, "seconds": self.seconds,
        }  # fmt: skip


def flat(numbers: Difference) -> dict[str, object]:
    """The numbers by name; those of the base only where there is one."""
    found = {name: getattr(numbers, name) for name in Difference.__dataclass_fields__}
    return {name: value for name, value in found.items() if value is not None}


def tensor_summary(tensor: TensorDifference) -> dict[str, object]:
    """One entry of `tensors` in the JSON object."""
    about = {name: getattr(tensor, name) for name in ("name", "canonical", "shape", "shape_b", "dtype", "dtype_b")}
    numbers = flat(tensor.difference) if tensor.difference is not None else {}
    return {**about, **numbers, "same": tensor.same, "move": tensor.move, "tool": tensor.tool, "note": tensor.note}


def _distance(tensor: TensorDifference) -> float:
    numbers = tensor.difference
    if numbers is None or math.isnan(numbers.one_minus_p_cos):
        return math.inf
    return numbers.one_minus_p_cos


def _fsum(values: Reals | list[float]) -> float:
    items = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        return math.fsum(items)
    except (OverflowError, ValueError):  # infinities of both signs, or a sum past the largest float64
        return math.nan
