"""Which tensor of A stands against which tensor of B: by the names of the files, else by canonical names. Reads headers only."""

from __future__ import annotations

from dataclasses import dataclass

from pretrace.checkpoint.names import canonical, naming
from pretrace.checkpoint.view import StateView
from pretrace.compare.names import Names, names_of
from pretrace.errors import PretraceError

# Tensors whose first axis counts tokens of the vocabulary: writers pad it to a multiple.
VOCABULARY = ("embed.weight", "head.weight")


@dataclass(frozen=True, slots=True)
class Pair:
    """One tensor of both, by their names in the two views; `rows` > 0: only the first rows are compared."""

    name: str  # what people call it: the name in A's file
    canonical: str
    in_a: str
    in_b: str
    rows: int = 0
    note: str = ""
    fits: bool = True  # whether the shapes allow numbers


@dataclass(frozen=True)
class Pairing:
    """The views that are read, the pairs in name order, and what has no partner."""

    a: StateView
    b: StateView
    base: StateView | None
    names_a: Names
    names_b: Names
    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    notes: tuple[str, ...] = ()


def pair_up(a: StateView, b: StateView, base: StateView | None = None) -> Pairing:
    """Pairs the tensors of two checkpoints.

    Where the files share names, tensors are compared as they are stored; else both are seen through the canonical tables.

    Raises
    ------
    PretraceError
        If the two have no tensor in common under either naming.
    """
    notes: list[str] = []
    if not _alike(a, b) or (base is not None and not _alike(a, base)):
        stored = _some(a), _some(b)
        a, b = _canonical(a, "A", *stored), _canonical(b, "B", *stored)
        base = None if base is None else _canonical(base, "the base", *stored)
        notes.append(f"compared by canonical names: {a.format} against {b.format}")
    common = sorted(set(a.names()) & set(b.names()))
    if not common:
        raise PretraceError(
            "the two checkpoints have no tensor in common", f"{_some(a)} against {_some(b)}",
            "check that both are of one architecture",
        )  # fmt: skip
    names_a, names_b = names_of(a), names_of(b)
    alone_a = _alone(a, b, names_a, notes)
    alone_b = _alone(b, a, names_b, notes)
    pairs = tuple(_pair(a, b, name, names_a.of.get(name, "")) for name in common)
    return Pairing(a, b, base, names_a, names_b, pairs, alone_a, alone_b, tuple(dict.fromkeys(notes)))


def _alike(a: StateView, b: StateView) -> bool:
    """Whether the files share names and layouts (GPT-2's names stand for [in, out] in one program and [out, in] in another)."""
    theirs, ours = set(a.names()), set(b.names())
    if 2 * len(theirs & ours) < max(1, min(len(theirs), len(ours))):
        return False
    tables = {naming(a).table, naming(b).table}
    return len(tables) == 1 or "" in tables


def _canonical(view: StateView, which: str, a: str, b: str) -> StateView:
    try:
        return canonical(view)
    except PretraceError as error:
        raise PretraceError(
            f"the two checkpoints do not share their names, and {which} cannot be seen by canonical ones: {error.what}",
            f"{a} against {b}", "check that both are whole and of one architecture, each with its config beside it",
        ) from None  # fmt: skip


def _pair(a: StateView, b: StateView, name: str, known: str) -> Pair:
    shape, other = a.info(name).shape, b.info(name).shape
    sources, _ = a.source(name)
    called = sources[0] if len(sources) == 1 else name
    if shape == other:
        return Pair(called, known, name, name)
    if known in VOCABULARY and shape[1:] == other[1:] and len(shape) == 2:
        longer = "A" if shape[0] > other[0] else "B"
        rows = min(shape[0], other[0])
        note = f"rows {rows} to {max(shape[0], other[0]) - 1} are in {longer} only: vocabulary padding, not compared"
        return Pair(called, known, name, name, rows=rows, note=note)
    return Pair(called, known, name, name, note=f"shapes {list(shape)} and {list(other)}", fits=False)


def _alone(view: StateView, other: StateView, names: Names, notes: list[str]) -> tuple[str, ...]:
    """Names without partner; buffers that can be computed are mentioned and left out."""
    found = [name for name in view.names() if name not in set(other.names())]
    buffers = [name for name in found if name in names.buffers]
    if buffers:
        notes.append(f"{len(buffers)} buffers that can be computed are stored on one side only ({buffers[0]} ...)")
    return tuple(sorted(set(found) - set(buffers)))


def _some(view: StateView) -> str:
    names = view.names()
    return f"{len(names)} tensors ({', '.join(names[:2])}{' ...' if len(names) > 2 else ''})" if names else "no tensors"
