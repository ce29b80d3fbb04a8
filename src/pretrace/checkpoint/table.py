"""Name-and-layout tables as data: which tensor of a published layout is which of ours, and how its axes lie.

A table is read in both directions: `names.canonical` makes our tensors out of theirs, `names.relabel` theirs out of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pretrace.checkpoint.view import TensorInfo

# `{i}` in a name is the number of a block; `{q,k,v}` in one of ours lists the parts of a fused tensor, in order.
_NUMBER = re.compile(r"\{([in])(?:\+(\d+))?\}")
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
    scale: str = ""  # ours = theirs times this ('sqrt_head_dim')
    plus: float = 0.0  # ... plus this (norm scales that are stored as their distance from 1)
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
    # (name, axis, other name, other axis) of equal size: tells it from a table with the same names
    equal: tuple[tuple[str, int, str, int], ...] = ()
    grouped: bool | None = None  # fits only where the format says that queries share keys, or that they do not
    may_lack: str = ""  # a prefix that some writers leave out
    before: tuple[str, ...] = ("",)  # what may stand before all names; the first is what is written

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Move | Ignored]]:
        rules: tuple[Move | Ignored, ...] = (*self.moves, *self.ignored)
        return [(_regex(rule.theirs), rule) for rule in rules]

    def match(self, name: str) -> tuple[Move | Ignored, int | None] | None:
        """The rule for one of their names, and its block number; None if the table does not know it."""
        for full in self._readings(name):
            for pattern, item in self._patterns:
                if found := pattern.fullmatch(full):
                    return item, _block(item, int(found["i"])) if "i" in pattern.groupindex else None
        return None

    def _readings(self, name: str) -> tuple[str, ...]:
        bare = stripped(name)
        within = [bare[len(start) :] for start in self.before if start and bare.startswith(start)]
        # A save of {"model": ...} puts the key before all names; Llama's own names start with the same word.
        return tuple(dict.fromkeys((*within, bare, self.may_lack + bare, bare.removeprefix("model."))))

    def score(self, infos: Iterable[TensorInfo]) -> int:
        """How many of the names it knows; one more for each shape that tells it apart and is as it says, one less if not."""
        known = 0
        told = {name for a, _, b, _ in self.equal for name in (a, b)}
        shapes: dict[str, tuple[int, ...]] = {}
        for info in infos:
            known += self.match(info.name) is not None
            shapes |= {name: info.shape for name in self._readings(info.name) if name in told}
        for a, axis, b, other in self.equal:
            if len(shapes.get(a, ())) > axis and len(shapes.get(b, ())) > other:
                known += 1 if shapes[a][axis] == shapes[b][other] else -1
        return known


# What a move is called when it is made the other way, from ours to theirs.
_BACK = {
    "split by head": "fused head by head", "split in blocks": "fused in blocks", "split in halves": "fused in halves",
    "a layer of the stack": "layers stacked", "rotary pairs interleaved -> half-split": "rotary half-split -> interleaved pairs",
    "query times sqrt(head_dim)": "query divided by sqrt(head_dim)", "norm scale + 1": "norm scale - 1",
    "first moment divided by sqrt(head_dim)": "first moment times sqrt(head_dim)",
    "second moment divided by head_dim": "second moment times head_dim",
}  # fmt: skip


def backwards(words: str) -> str:
    """The words of a move made from ours to theirs.

    >>> backwards("split in blocks, transpose (Conv1D)")
    'fused in blocks, transpose (Conv1D)'
    """
    return ", ".join(_BACK.get(part, part) for part in words.split(", "))


def _block(item: Move | Ignored, number: int) -> int:
    offset = re.search(r"\{i\+(\d+)\}", item.theirs)
    return number - int(offset[1]) if offset else number


def stripped(name: str) -> str:
    """The name without what torch.compile and data-parallel wrappers put before it."""
    while name.startswith(_WRAPPERS):
        name = name.removeprefix("_orig_mod.").removeprefix("module.")
    return name


def _regex(pattern: str) -> re.Pattern[str]:
    made = re.escape(pattern)
    made = re.sub(r"\\\{i(?:\\\+\d+)?\\\}", r"(?P<i>0|[1-9]\\d{0,5})", made)
    return re.compile(re.sub(r"\\\{n\\\+\d+\\\}", r"\\d{1,6}", made))


def numbered(pattern: str, block: int | None, n_layers: int = 0) -> str:
    """A name with its numbers: `{i}` the block, `{i+2}` two more, `{n+3}` three more than the number of blocks.

    >>> numbered("sequential.{i+2}.norm", 4), numbered("sequential.{n+3}.norm", None, 12)
    ('sequential.6.norm', 'sequential.15.norm')
    """
    return _NUMBER.sub(lambda m: str((n_layers if m[1] == "n" else block or 0) + int(m[2] or 0)), pattern)


def has_block(pattern: str) -> bool:
    """Whether a name is that of a block's tensor."""
    return "{i" in pattern
