"""In which order one process plays the ranks, and which of their gradients it keeps: memory against time. No tensor here.

A ring visits ranks as a rotation that differs from chunk to chunk, so ranks played one after another arrive too early for part
of the buffer. What is early is parked, or played again later:

    park      W evaluations, about (W - 1) / 2 gradients parked
    hybrid    the last k ranks played park, the others are played again: W + (W - 1 - k) evaluations, k (k + 1) / 2W parked
    two-pass  nothing parked, 2W - 1 evaluations
    spill     as park, what exceeds the budget goes to a file

All give the same bits. Playing again needs a backward pass that repeats itself; the reducer compares fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pretrace.step.nesting import Nesting, ranks_of
from pretrace.step.orders import Path

Mode = Literal["park", "hybrid", "two-pass", "spill"]
Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be held beside the fixed buffers of a step (gradient, sum, result); changes no bit.

    parked_bytes : for gradients that wait for their turn; None: as much as it takes.
    spill : a folder for what exceeds it; None: ranks are played again instead.
    """

    parked_bytes: int | None = None
    spill: str | None = None


UNBOUNDED = Budget()


@dataclass(frozen=True, slots=True)
class Visits:
    """The ranks as they are played, which of them keep what comes early, and what that takes."""

    order: tuple[int, ...]
    keep: frozenset[int]
    mode: Mode
    parked_bytes: int  # at the worst moment
    again: int  # ranks that are played a second time


def plan_visits(buckets: Sequence[tuple[Sequence[Path], int]], world_size: int, budget: Budget) -> Visits:
    """Chooses how the ranks are played.

    Parameters
    ----------
    buckets : the paths of each bucket, and the bytes that one element takes while it is parked.
    """
    chains = _sizes_of_chains(buckets)
    order = _order(chains, world_size)
    place = {rank: at for at, rank in enumerate(order)}

    def visits(m: int, mode: Mode) -> Visits:
        keep = frozenset(order[world_size - m :])
        parked, again = _simulate(chains, place, keep)
        return Visits(order, keep, mode, parked, again)

    everything = visits(world_size, "park")
    if budget.parked_bytes is None or everything.parked_bytes <= budget.parked_bytes:
        return everything
    if budget.spill is not None:
        return visits(world_size, "spill")
    low, high = 0, world_size - 1  # the largest number of ranks that fits; parked bytes grow with it
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if visits(middle, "hybrid").parked_bytes <= budget.parked_bytes else (low, middle - 1)
        )
    best = visits(low, "hybrid")
    return best if best.parked_bytes else visits(low, "two-pass")


def _sizes_of_chains(buckets: Sequence[tuple[Sequence[Path], int]]) -> dict[Nesting, int]:
    """Bytes that are summed in each distinct nesting."""
    sizes: dict[Nesting, int] = {}
    for paths, itemsize in buckets:
        for path in paths:
            sizes[path.nesting] = sizes.get(path.nesting, 0) + (path.stop - path.start) * itemsize
    return sizes


def _order(chains: Mapping[Nesting, int], world_size: int) -> tuple[int, ...]:
    """Upwards or downwards: whichever parks less, and then whichever has fewer ranks to play again without parking."""
    up = tuple(range(world_size))

    def cost(order: tuple[int, ...]) -> tuple[int, int]:
        place = {rank: at for at, rank in enumerate(order)}
        return _simulate(chains, place, frozenset(order))[0], _simulate(chains, place, frozenset())[1]

    return min(up, up[::-1], key=cost)


def _simulate(chains: Mapping[Nesting, int], place: Mapping[int, int], keep: frozenset[int]) -> tuple[int, int]:
    """Parked bytes at the worst moment of the first round, and how many ranks have to be played again."""
    change = [0] * (len(place) + 2)
    again: set[int] = set()
    for nesting, size in chains.items():
        _simulate_sum(nesting, size, place, keep, change, again)
    peak = live = 0
    for step in change:
        live += step
        peak = max(peak, live)
    return peak, len(again)


def _simulate_sum(
    nesting: Nesting, size: int, place: Mapping[int, int], keep: frozenset[int], change: list[int], again: set[int]
) -> int:
    """Enters what one sum parks into `change` (by moment); returns the moment at which the sum is complete."""
    if isinstance(nesting, int):
        return place[nesting]
    end = len(change) - 1
    ready, blocked = -1, False
    for member in nesting:
        at = _simulate_sum(member, size, place, keep, change, again)
        early = blocked or at < ready
        if early and isinstance(member, int) and member not in keep:
            again.add(member)
            blocked = True
        elif early:
            change[min(at, end)] += size
            change[end if blocked else ready] -= size
        else:
            if not isinstance(member, int) and at < end:
                change[max(0, min(place[r] for r in ranks_of(member)))] += size  # the member's own running sum
                change[at] -= size
            ready = at
    return end if blocked else ready
