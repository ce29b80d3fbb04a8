"""Trees of additions from what a probe shows, and back. No torch here.

A `Together` table says for every two ranks how many ranks lie under the addition where they meet. Addition of two numbers
commutes, so a table stands for all mirror images of a tree.
"""

from __future__ import annotations

from pretrace.step.nesting import Nesting

Together = tuple[tuple[int, ...], ...]  # [i][j]: ranks under the addition where i and j meet; 1 on the diagonal


def tree(together: Together) -> Nesting | None:
    """The nesting whose additions show this table; None if there is none.

    >>> tree(((1, 2, 3), (2, 1, 3), (3, 3, 1)))
    (0, 1, 2)
    """
    nesting = _grow(together, list(range(len(together))))
    return nesting if nesting is not None and meetings(nesting, len(together)) == together else None


def _grow(together: Together, ranks: list[int]) -> Nesting | None:
    if len(ranks) == 1:
        return ranks[0]
    first = ranks[0]
    inner = [r for r in ranks if r == first or together[first][r] < len(ranks)]
    outer = [r for r in ranks if r not in inner]
    if not outer:
        return None
    a, b = _grow(together, inner), _grow(together, outer)
    if a is None or b is None:
        return None
    if len(outer) > len(inner):
        a, b = b, a
    # (a1, a2, ...) is summed from left to right, so (a1, a2) + b is (a1, a2, b).
    return (*a, b) if isinstance(a, tuple) else (a, b)


def meetings(nesting: Nesting, world_size: int) -> Together:
    """The table that a nesting shows: ranks under the addition where i and j meet.

    >>> meetings((1, 0, 2), 3)
    ((1, 2, 3), (2, 1, 3), (3, 3, 1))
    """
    table = [[1] * world_size for _ in range(world_size)]
    _meet(nesting, table)
    return tuple(map(tuple, table))


def _meet(nesting: Nesting, table: list[list[int]]) -> list[int]:
    if isinstance(nesting, int):
        return [nesting]
    done = _meet(nesting[0], table)
    for member in nesting[1:]:
        new = _meet(member, table)
        for i in done:
            for j in new:
                table[i][j] = table[j][i] = len(done) + len(new)
        done = done + new
    return done


def is_wide(together: Together) -> bool:
    """Every unit survived for every pair: nothing is rounded to the wire before the end."""
    n = len(together)
    return n > 2 and all(together[i][j] == 2 for i in range(n) for j in range(n) if i != j)


def words_of(nesting: Nesting) -> str:
    """A nesting for people.

    >>> words_of((1, 0, (3, 2)))
    '((1 + 0) + (3 + 2))'
    """
    if isinstance(nesting, int):
        return str(nesting)
    text = words_of(nesting[0])
    for member in nesting[1:]:
        text = f"({text} + {words_of(member)})"
    return text
