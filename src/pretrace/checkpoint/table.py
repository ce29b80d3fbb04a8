"""Name-and-layout tables as data: which tensor of a published layout is which of ours, and how its axes lie.

A table is read in both directions: `names.canonical` makes our tensors out of theirs, `names.relabel` theirs out of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

# `{i}` in a name is the number of a block; `{q,k,v}` in one of ours lists the parts of a fused tensor, in order.
_WRAPPERS = ("_orig_mod.", "module.")
_CHOICE = re.compile(r"\{([a-z]+(?:,[a-z]+)+)\}")


@dataclass(frozen=True, slots=True)
class Move:
    """One of their tensors and ours that it holds. The constructors below have the usual shapes."""

    theirs: str
    ours: str
    axes: str = ""  # as in `axes.parse`; '' if the tensor is the same
    along: str = ""  # their axis that is cut among the choices in `ours`
    words: str = ""  # what the move is called, for people
    scale: str = ""  # ours = theirs times this: 'sqrt_head_dim'
    optional: bool = False  # may be absent (a tied head, a bias)

    @property
    def parts(self) -> tuple[str, ...]:
        """Our names, the choices written out.

        >>> Move("a.{i}", "b.{i}.{q,k}.weight").parts
        ('b.{i}.q.weight', 'b.{i}.k.weight')
        """
        choice = _CHOICE.search(self.ours)
        if choice is None:
            return (self.ours,)
        return tuple(self.ours.replace(choice.group(), name) for name in choice.group(1).split(","))


def Rename(theirs: str, ours: str, *, optional: bool = False) -> Move:
    """The same tensor under another name."""
    return Move(theirs, ours, optional=optional)


def Transpose(theirs: str, ours: str, words: str = "transpose (Conv1D)") -> Move:
    """[in, out] there, [out, in] here."""
    return Move(theirs, ours, "i o -> o i", words=words)


def Split(theirs: str, into: str, by: str, *, transpose: bool = False) -> Move:
    """A fused tensor, cut along its output axis. Weights or biases, told by the name.

    `by`: `head` (per key head: its queries, k, v), `head_last` ([H, d, 3]), `blocks` (all of q, all of k, all of v),
    `halves` (gate and up).
    """
    out = {"head": "(g n d)", "head_last": "(g d n)", "blocks": "(n d)", "halves": "(n f)"}[by]
    words = {"head": "split by head", "head_last": "split by head, parts last"}.get(by, "split in " + by)
    if theirs.endswith("bias"):
        return Move(theirs, into, f"{out} -> {out}", "n", words)
    theirs_axes = f"i {out}" if transpose else f"{out} i"
    return Move(theirs, into, f"{theirs_axes} -> {out} i", "n", words + (", transpose (Conv1D)" if transpose else ""))


@dataclass(frozen=True, slots=True)
class Ignored:
    """A stored tensor that is no parameter (a buffer that can be computed)."""

    theirs: str
    why: str


@dataclass(frozen=True)
class Table:
    """All tensors of one published layout."""

    name: str
    family: str  # of `ModelSpec.family`
    moves: tuple[Move, ...]
    ignored: tuple[Ignored, ...] = ()
    may_lack: str = ""  # a prefix that some writers leave out

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Move | Ignored]]:
        rules: tuple[Move | Ignored, ...] = (*self.moves, *self.ignored)
        return [(_regex(rule.theirs), rule) for rule in rules]

    def match(self, name: str) -> tuple[Move | Ignored, int | None] | None:
        """The rule for one of their names, and its block number; None if the table does not know it."""
        bare = stripped(name)
        for full in (bare, self.may_lack + bare) if self.may_lack else (bare,):
            for pattern, item in self._patterns:
                if found := pattern.fullmatch(full):
                    return item, int(found["i"]) if "i" in pattern.groupindex else None
        return None

    def score(self, names: tuple[str, ...]) -> int:
        """How many of the names it knows."""
        return sum(self.match(name) is not None for name in names)


def stripped(name: str) -> str:
    """The name without what torch.compile and data-parallel wrappers put before it."""
    while name.startswith(_WRAPPERS):
        name = name.removeprefix("_orig_mod.").removeprefix("module.")
    return name


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{i\}", r"(?P<i>0|[1-9]\d{0,5})").replace(r"\*", r"[^.]+"))
