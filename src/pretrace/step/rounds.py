"""How several processes stay within a budget: the buffer goes through the wire in rounds, each a part of it. No tensor here.

A process that plays W/P ranks can rarely add them alone (a ring starts elsewhere for most of the buffer), so their pieces wait
for the exchange: up to W/P gradients that leave, and as much that comes. Within a budget only a part of the buffer is exchanged
at a time, and the ranks are played once a round; sums are taken element by element, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pretrace.step.orders import Path

MOST = 64  # rounds: each plays all ranks again


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements start..stop of the flat buffer, within one bucket, and the paths of them, counted from `start`."""

    start: int
    stop: int
    along: tuple[Path, ...]


def rounds(
    buckets: Sequence[tuple[int, int]], along: Sequence[Sequence[Path]], waiting: int, parked_bytes: int | None
) -> tuple[tuple[Cut, ...], ...]:
    """The cuts of each round; one round of whole buckets without a budget.

    Parameters
    ----------
    waiting : bytes that wait for one element of the buffer, at most.
    parked_bytes : kept to, unless that took more than `MOST` rounds.

    >>> ten = [Path(0, 10, (0, 1))]
    >>> [[(c.start, c.stop) for c in cuts] for cuts in rounds([(0, 10), (10, 14)], [ten, [Path(0, 4, (1, 0))]], 8, 72)]
    [[(0, 6)], [(6, 10), (10, 12)], [(12, 14)]]
    """
    numel = sum(stop - start for start, stop in buckets)
    # The owners' shares of a cut are rounded up: an element more for each of its pieces.
    slack = waiting * (len(buckets) + 1)
    room = numel if parked_bytes is None else max((parked_bytes - slack) // waiting, -(-numel // MOST), 1)
    found: list[list[Cut]] = [[]]
    left = room
    for (start, stop), paths in zip(buckets, along):
        at = start
        while at < stop:
            if not left:
                found.append([])
                left = room
            end = min(stop, at + left)
            found[-1].append(Cut(at, end, _within(paths, at - start, end - start)))
            left -= end - at
            at = end
    return tuple(map(tuple, found))


def _within(paths: Sequence[Path], start: int, stop: int) -> tuple[Path, ...]:
    """The paths of elements start..stop, counted from `start`."""
    inside = (Path(max(p.start, start) - start, min(p.stop, stop) - start, p.nesting) for p in paths)
    return tuple(path for path in inside if path.start < path.stop)
