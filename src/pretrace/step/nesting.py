"""How copies of ranks are added: a number is a rank's own copy, a tuple the sum of its members from left to right."""

from __future__ import annotations

from typing_extensions import TypeAliasType

Nesting = TypeAliasType("Nesting", "int | tuple[Nesting, ...]")


def ranks_of(nesting: Nesting) -> list[int]:
    """The ranks of a nesting, left to right.

    >>> ranks_of(((0, 1), (2, 3), 4))
    [0, 1, 2, 3, 4]
    """
    if isinstance(nesting, int):
        return [nesting]
    return [rank for member in nesting for rank in ranks_of(member)]
