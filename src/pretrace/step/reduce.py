"""Adds the gradients of ranks in the order of a plan, one rank after another, holding as little as the order allows.

`fold_all` is the plain version: all ranks in memory, nestings evaluated as written. `Fold` gives the same bits while the ranks
arrive one by one; a piece that comes before its turn is parked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pretrace.step.nesting import Nesting
from pretrace.step.orders import Path
from pretrace.step.parking import Parking, Ticket
from pretrace.step.reduction_spec import ScaleOp


def scale(bucket: Tensor, ops: Sequence[ScaleOp], where: str, world_size: int, wire: torch.dtype) -> None:
    """Applies the divisions that stand at `where`, in place."""
    for op in ops:
        if op.where != where:
            continue
        divisor = op.divisor(world_size)
        if op.op == "div":
            bucket.div_(divisor)
        elif op.op == "mul":
            bucket.mul_(1.0 / divisor)
        else:
            bucket.mul_(torch.tensor(1.0 / divisor).to(wire).item())


def to_wire(bucket: Tensor, ops: Sequence[ScaleOp], world_size: int, wire: torch.dtype) -> Tensor:
    """A rank's bucket as it goes on the wire; `bucket` itself is used up."""
    scale(bucket, ops, "before_cast", world_size, wire)
    sent = bucket.to(wire)
    scale(sent, ops, "wire_pre", world_size, wire)
    return sent


def from_wire(total: Tensor, ops: Sequence[ScaleOp], world_size: int, wire: torch.dtype, final: torch.dtype) -> Tensor:
    """The reduced bucket in the dtype of the optimizer; a sum that was added wider than the wire is rounded first."""
    total = total.to(wire)
    scale(total, ops, "wire_post", world_size, wire)
    out = total.to(final)
    scale(out, ops, "after_cast", world_size, wire)
    return out


def fold_all(flats: Sequence[Tensor], paths: Sequence[Path], *, wide: bool = False) -> Tensor:
    """The sum of all ranks' buffers, every nesting evaluated as it is written. The slow, plain version.

    `wide` adds in float32 whatever the buffers' dtype, and rounds once.
    """

    def value(nesting: Nesting, path: Path) -> Tensor:
        if isinstance(nesting, int):
            piece = flats[nesting][path.start : path.stop]
            return piece.float() if wide else piece
        total = value(nesting[0], path)
        for member in nesting[1:]:
            total = total + value(member, path)
        return total

    out = torch.empty_like(flats[0])
    for path in paths:
        out[path.start : path.stop] = value(path.nesting, path)
    return out


class Fold:
    """The sum of buffers that arrive rank by rank, in any order. `result` is the sum once `wants` nobody any more."""

    def __init__(self, paths: Sequence[Path], out: Tensor, parking: Parking | None = None) -> None:
        """`out` takes the sum; its dtype is the one of the additions (the wire's, or float32)."""
        self._begin([(path, out[path.start : path.stop]) for path in paths], out.dtype, parking)
        self.out = out

    @classmethod
    def into(cls, places: Sequence[tuple[Path, Tensor]], dtype: torch.dtype, parking: Parking | None = None) -> Fold:
        """A fold that writes every path's sum to a place of its own."""
        fold = cls.__new__(cls)
        fold._begin(places, dtype, parking)
        return fold

    def _begin(self, places: Sequence[tuple[Path, Tensor]], dtype: torch.dtype, parking: Parking | None) -> None:
        self.dtype = dtype
        self.parking = Parking() if parking is None else parking
        self._leaves: dict[int, list[_Leaf]] = {}
        for path, into in places:
            nesting = path.nesting if isinstance(path.nesting, tuple) else (path.nesting,)
            self._grow(_Sum(self, None, 0, len(nesting), into), nesting, path)

    def add(self, rank: int, flat: Tensor, *, keep: bool = True) -> None:
        """Takes in a rank's buffer, which may be overwritten afterwards.

        What is early is parked, or with `keep=False` left out: then the rank must be added again, with the same bits.
        """
        left = []
        for leaf in self._leaves.pop(rank, ()):
            node, index, start, stop = leaf
            if keep or index == node.next:
                node.give(index, flat[start:stop], owned=False)
            else:
                left.append(leaf)
        if left:
            self._leaves[rank] = left

    def wants(self, rank: int) -> bool:
        """Whether something of the rank is still missing."""
        return rank in self._leaves

    def result(self) -> Tensor:
        """The finished sum."""
        assert not self._leaves, f"ranks {sorted(self._leaves)} have not arrived"
        return self.out

    def _grow(self, node: _Sum, members: tuple[Nesting, ...], path: Path) -> None:
        for index, member in enumerate(members):
            if isinstance(member, int):
                self._leaves.setdefault(member, []).append((node, index, path.start, path.stop))
            else:
                self._grow(_Sum(self, node, index, len(member), None), member, path)


class _Sum:
    """One tuple of a nesting while its members arrive: adds what is next, keeps what is early."""

    __slots__ = ("early", "fold", "index", "n", "next", "parent", "total")

    def __init__(self, fold: Fold, parent: _Sum | None, index: int, n: int, into: Tensor | None) -> None:
        self.fold, self.parent, self.index, self.n = fold, parent, index, n
        self.total = into
        self.next = 0
        self.early: dict[int, Ticket] = {}

    def give(self, index: int, value: Tensor, *, owned: bool) -> None:
        """Member number `index` is there; `owned` says that its memory may be kept."""
        if index != self.next:
            self.early[index] = self.fold.parking.put(value, owned=owned)
            return
        self._take(value, owned)
        while self.early and self.next in self.early:
            self._take(self.fold.parking.take(self.early.pop(self.next)), True)
        if self.next == self.n and self.parent is not None:
            self._pass_on(self.parent)

    def _take(self, value: Tensor, owned: bool) -> None:
        if self.next:
            assert self.total is not None
            self.total.add_(value)
        elif self.total is not None:
            self.total.copy_(value)
        else:  # a sum inside a sum: its running total is held until it is handed up
            same = value.dtype == self.fold.dtype
            self.total = value if owned and same else value.to(self.fold.dtype, copy=True)
            self.fold.parking.count(self.total.nbytes)
        self.next += 1

    def _pass_on(self, parent: _Sum) -> None:
        total, self.total = self.total, None
        assert total is not None
        self.fold.parking.count(-total.nbytes)
        parent.give(self.index, total, owned=True)


_Leaf = tuple[_Sum, int, int, int]  # where a rank's piece goes: sum, number in it, elements start..stop
