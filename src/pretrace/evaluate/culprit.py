"""Which row a task fails on: the harness says only that it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def first_bad(rows: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> int | None:
    """Index of a row that fails alone, by halving; None if the rows fail together only.

    >>> first_bad(["a", "b", "x", "c"], lambda part: "x" in part)
    2
    """
    start, stop = 0, len(rows)
    while stop - start > 1:
        middle = (start + stop) // 2
        if fails(rows[start:middle]):
            stop = middle
        elif fails(rows[middle:stop]):
            start = middle
        else:
            return None
    return start if stop > start and fails(rows[start:stop]) else None
