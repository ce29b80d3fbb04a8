"""How P processes that play W ranks add in the order of one: who sums what, and who sends what to whom. No tensor here.

Every process owns an equal part of each bucket and finishes the sums of that part. What a process can add alone (a subtree of
its own ranks, or the start of a chain) it sends as one piece; the rest as the ranks' own pieces. The owner adds the pieces in
the nesting that is left, so any number of processes gives the bits of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pretrace.step.nesting import Nesting, ranks_of
from pretrace.step.orders import Path


@dataclass(frozen=True, slots=True)
class Part:
    """A sum that one process can make alone, over ranks it plays."""

    process: int
    nesting: Nesting


@dataclass(frozen=True, slots=True)
class Job:
    """Elements start..stop of a bucket: the parts that are sent to the owner, and how it adds them."""

    start: int
    stop: int
    owner: int
    parts: tuple[Part, ...]
    outer: Nesting  # over numbers of parts


def owned(numel: int, process: int, n_processes: int) -> tuple[int, int]:
    """The elements of a bucket that a process finishes."""
    share = -(-numel // n_processes)
    return min(process * share, numel), min((process + 1) * share, numel)


def jobs(paths: Sequence[Path], numel: int, world_size: int, n_processes: int) -> tuple[Job, ...]:
    """The jobs of a bucket, in the order of its elements, none across two owners.

    >>> first, second = jobs([Path(0, 4, (0, 1, 2, 3))], 4, world_size=4, n_processes=2)
    >>> (second.start, second.stop, second.owner, second.outer, second.parts[0])
    (2, 4, 1, (0, 1, 2), Part(process=0, nesting=(0, 1)))
    """
    share = world_size // n_processes
    collapsed: dict[Nesting, tuple[tuple[Part, ...], Nesting]] = {}
    found = []
    for path in paths:
        if path.nesting not in collapsed:
            collapsed[path.nesting] = collapse(path.nesting, lambda rank: rank // share)
        parts, outer = collapsed[path.nesting]
        for process in range(n_processes):
            a, b = owned(numel, process, n_processes)
            start, stop = max(a, path.start), min(b, path.stop)
            if start < stop:
                found.append(Job(start, stop, process, parts, outer))
    return tuple(found)


def collapse(nesting: Nesting, process_of: Callable[[int], int]) -> tuple[tuple[Part, ...], Nesting]:
    """Takes together what one process can add alone.

    >>> collapse((1, 0, 3, 2), lambda rank: rank // 2)
    ((Part(process=0, nesting=(1, 0)), Part(process=1, nesting=3), Part(process=1, nesting=2)), (0, 1, 2))
    """
    parts: list[Part] = []

    def alone(member: Nesting) -> int | None:
        processes = {process_of(rank) for rank in ranks_of(member)}
        return processes.pop() if len(processes) == 1 else None

    def part(process: int, member: Nesting) -> int:
        parts.append(Part(process, member))
        return len(parts) - 1

    def shrink(member: Nesting) -> Nesting:
        process = alone(member)
        if process is not None:
            return part(process, member)
        assert isinstance(member, tuple)
        first = alone(member[0])
        run = 0
        while first is not None and run < len(member) and alone(member[run]) == first:
            run += 1
        head = [part(first, member[:run])] if first is not None and run > 1 else []
        rest = [shrink(inner) for inner in member[len(head) and run :]]
        return tuple([*head, *rest])

    outer = shrink(nesting)
    return tuple(parts), outer


def pieces(found: Sequence[Job], sender: int, receiver: int) -> Iterator[tuple[int, int, int]]:
    """What `sender` sends to `receiver`, in order: number of the job, number of the part, elements."""
    for number, job in enumerate(found):
        if job.owner != receiver:
            continue
        for index, part in enumerate(job.parts):
            if part.process == sender:
                yield number, index, job.stop - job.start
