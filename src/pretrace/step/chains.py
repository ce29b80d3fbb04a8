"""`Fold` for orders whose every range is a chain, as rings are: what a rank adds now, and what it parks, are a few long runs.

A ring over W ranks has W ranges, and W^2 pieces that join one by one. But the ranges that a rank joins at one moment lie side by
side, so two slices an arrival do. The bits are `Fold`'s (`tests/step/test_reduce.py`); at W = 512 it is a hundred times quicker.

Axes: N ranges of the buffer, W ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrace.step.orders import Path
from pretrace.step.parking import Parking, Ticket

Mask = NDArray[np.bool_]


def all_chains(paths: Sequence[Path]) -> bool:
    """Whether every nesting is ranks one after another."""
    return all(isinstance(p.nesting, tuple) and all(isinstance(m, int) for m in p.nesting) for p in paths)


class _Parked:
    """Ranges first..last of one rank's buffer, waiting; read back once, given back when the last of them has joined."""

    __slots__ = ("counted", "first", "held", "last", "offset", "ticket")

    def __init__(self, first: int, last: int, offset: int, ticket: Ticket) -> None:
        self.first, self.last, self.offset, self.ticket = first, last, offset, ticket
        self.held: Tensor | None = None
        self.counted = False


class ChainFold:
    """The sum of buffers that arrive rank by rank; the interface of `reduce.Fold`."""

    def __init__(self, paths: Sequence[Path], out: Tensor, parking: Parking | None = None) -> None:
        """`paths` are chains that follow each other without gaps; `out` takes the sum."""
        self.out = out
        self.parking = Parking() if parking is None else parking
        self._bounds = [*(path.start for path in paths), paths[-1].stop if paths else 0]
        self._chain = np.array([path.nesting for path in paths], dtype=np.int64).reshape(len(paths), -1)  # [N, W]
        self._world = self._chain.shape[1]
        self._place = np.argsort(self._chain, axis=1)  # [N, W] where in its chain a rank stands
        self._next = np.zeros(len(paths), dtype=np.int64)  # [N] ranks that have joined
        self._missing = np.ones_like(self._chain, dtype=np.bool_)  # [N, W] by rank: has not arrived
        self._waiting = np.zeros_like(self._missing)  # [N, W] by rank: parked
        self._parked: dict[int, list[_Parked]] = {}
        self._rows = np.arange(len(paths))

    def add(self, rank: int, flat: Tensor, *, keep: bool = True) -> None:
        """Takes in a rank's buffer, which may be overwritten afterwards; as `Fold.add`."""
        arrived = self._missing[:, rank]
        now = arrived & (self._place[:, rank] == self._next)
        early = arrived & ~now
        self._join(flat, 0, now)
        self._missing[now, rank] = False
        if keep:
            self._park(rank, flat, early)
        self._drain()

    def wants(self, rank: int) -> bool:
        """Whether something of the rank is still missing."""
        return bool(self._missing[:, rank].any())

    def result(self) -> Tensor:
        """The finished sum."""
        assert bool((self._next == self._world).all()), "some ranks have not arrived"
        return self.out

    def _join(self, source: Tensor, offset: int, mask: Mask) -> None:
        """Adds `source`, which begins at element `offset` of the buffer, to the ranges of `mask`."""
        begins = mask & (self._next == 0)
        for a, b in self._runs(begins):
            self.out[a:b].copy_(source[a - offset : b - offset])
        for a, b in self._runs(mask & ~begins):
            self.out[a:b].add_(source[a - offset : b - offset])
        self._next[mask] += 1

    def _park(self, rank: int, flat: Tensor, early: Mask) -> None:
        for first, last in _edges(early):
            a, b = self._bounds[first], self._bounds[last]
            piece = _Parked(first, last, a, self.parking.put(flat[a:b], owned=False))
            self._parked.setdefault(rank, []).append(piece)
        self._missing[early, rank] = False
        self._waiting[early, rank] = True

    def _drain(self) -> None:
        """Lets parked pieces join for as long as it is their turn."""
        while self._parked:
            turn = self._chain[self._rows, np.minimum(self._next, self._world - 1)]
            ready = (self._next < self._world) & self._waiting[self._rows, turn]
            if not ready.any():
                return
            for rank in np.unique(turn[ready]).tolist():
                self._unpark(rank, ready & (turn == rank))

    def _unpark(self, rank: int, mask: Mask) -> None:
        left = []
        for piece in self._parked[rank]:
            part = np.zeros_like(mask)
            part[piece.first : piece.last] = mask[piece.first : piece.last]
            if part.any():
                self._join(self._held(piece), piece.offset, part)
                self._waiting[part, rank] = False
            if self._waiting[piece.first : piece.last, rank].any():
                left.append(piece)
                if piece.held is not None and not piece.counted:  # in part used: it stays in memory until the rest is
                    self.parking.count(piece.ticket.n_bytes)
                    piece.counted = True
            elif piece.counted:
                self.parking.count(-piece.ticket.n_bytes)
        if left:
            self._parked[rank] = left
        else:
            del self._parked[rank]

    def _held(self, piece: _Parked) -> Tensor:
        if piece.held is None:
            piece.held = self.parking.take(piece.ticket)
        return piece.held

    def _runs(self, mask: Mask) -> Iterator[tuple[int, int]]:
        """Elements start..stop of every run of ranges in a mask."""
        for first, last in _edges(mask):
            yield self._bounds[first], self._bounds[last]


def _edges(mask: Mask) -> list[list[int]]:
    """First and one-past-last index of every run of True.

    >>> _edges(np.array([True, True, False, True]))
    [[0, 2], [3, 4]]
    """
    padded = np.concatenate(([False], mask, [False]))
    edges: list[list[int]] = np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2).tolist()
    return edges
