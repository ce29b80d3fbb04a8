"""The small language of layouts: named axes of their tensor -> named axes of ours, turned into links.

`"(h n d) i -> (h n d) i"` names the axes as einops does. Sizes are taken from the model and from the shapes. Three things go
beyond a reordering:

- `along="n"`: their axis n is the concatenation of several parts, one for each of our tensors (fused QKV, gate and up).
- `~d`: their lanes of a head are in interleaved rotary order (pairs 2i, 2i+1); ours are half-split. Only rotary lanes move.
- an axis of theirs that is absent in ours is picked at one index (the layer of a stacked array).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.links import Link, c_strides, normal

Side = tuple[tuple[str, ...], ...]  # one tuple of axis names for each dimension


@dataclass(frozen=True, slots=True)
class Pattern:
    """Both sides of a layout, parsed."""

    theirs: Side
    ours: Side


@dataclass(frozen=True, slots=True)
class Part:
    """What one of our tensors takes of their tensor."""

    along: str = ""  # the axis that is cut; '' if nothing is
    start: int = 0  # first index on that axis
    size: int = 0  # indices on that axis
    picked: tuple[tuple[str, int], ...] = ()  # axes that ours has not, at one index
    rotary_lanes: int = 0  # lanes of `~d` that are interleaved


def parse(text: str) -> Pattern:
    """Parses `"(h d) i -> i h d"`; parentheses do not nest.

    >>> parse("D (n f) -> f D").theirs
    (('D',), ('n', 'f'))
    """
    left, _, right = text.partition("->")
    return Pattern(_side(left), _side(right))


def _side(text: str) -> Side:
    dims: list[tuple[str, ...]] = []
    group: list[str] | None = None
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            group = []
        elif token == ")":
            dims.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(token)
        else:
            dims.append((token,))
    return tuple(dims)


def sizes_of(side: Side, shape: Sequence[int], known: Mapping[str, int], name: str) -> dict[str, int]:
    """The size of every axis of one side, `~` removed; at most one unknown for each dimension.

    Raises
    ------
    DamagedFile
        With code `shape` if the shape does not fit the layout.
    """
    if len(shape) != len(side):
        raise _misfit(name, shape, f"{len(side)} axes are expected")
    sizes: dict[str, int] = {}
    for dim, axes in zip(shape, side):
        plain = [axis.lstrip("~") for axis in axes]
        fixed = math.prod(known[a] for a in plain if a in known)
        free = [a for a in plain if a not in known]
        if len(free) > 1 or (fixed and dim % fixed) or (not free and fixed != dim):
            told = " x ".join(f"{a}={known[a]}" if a in known else a for a in plain)
            raise _misfit(name, shape, f"{dim} is not {told}")
        sizes |= {a: known[a] for a in plain if a in known}
        sizes |= {a: dim // fixed if fixed else 0 for a in free}
    return sizes


def _misfit(name: str, shape: Sequence[int], why: str) -> DamagedFile:
    return DamagedFile("shape", f"{name} has the shape {list(shape)}: {why}", name,
                       "check that config and weights belong together", shape=list(shape))  # fmt: skip


def shape_of(side: Side, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one side."""
    return tuple(math.prod(sizes[axis.lstrip("~")] for axis in axes) for axes in side)


def link(pattern: Pattern, theirs: str, sizes: Mapping[str, int], part: Part) -> tuple[Link, ...]:
    """The links that make one of our tensors out of `theirs`. `sizes` are those of their axes."""
    ours_sizes = dict(sizes)
    if part.along:
        ours_sizes[part.along] = part.size
    their_strides = _strides(pattern.theirs, sizes)
    our_strides = _strides(pattern.ours, ours_sizes)
    offset = sum(index * their_strides[axis] for axis, index in part.picked)
    if part.along:
        offset += part.start * their_strides[part.along]
    box = [(ours_sizes[a], our_strides[a], their_strides[a]) for a in our_strides]
    lanes = next((a[1:] for axes in pattern.theirs for a in axes if a.startswith("~")), "")
    if not lanes:
        return (_link(theirs, box, 0, offset),)
    rest = [(ours_sizes[a], our_strides[a], their_strides[a]) for a in our_strides if a != lanes]
    return _interleaved(
        theirs, rest, (ours_sizes[lanes], our_strides[lanes], their_strides[lanes]), offset, part.rotary_lanes
    )


def _interleaved(theirs: str, rest: list[tuple[int, int, int]], lane: tuple[int, int, int], offset: int,
                 rotary: int) -> tuple[Link, ...]:  # fmt: skip
    n, ours, their = lane
    half = rotary // 2
    pairs = [(2, half * ours, their), (half, ours, 2 * their)]  # ours: lane j and lane half + j; theirs: 2j and 2j + 1
    made = [_link(theirs, rest + pairs, 0, offset)] if half else []
    if n > rotary:
        made.append(_link(theirs, [*rest, (n - rotary, ours, their)], rotary * ours, offset + rotary * their))
    return tuple(made)


def _link(theirs: str, box: list[tuple[int, int, int]], target_offset: int, source_offset: int) -> Link:
    return normal(Link(theirs, tuple(b[0] for b in box), tuple(b[1] for b in box), tuple(b[2] for b in box),
                       target_offset, source_offset))  # fmt: skip


def _strides(side: Side, sizes: Mapping[str, int]) -> dict[str, int]:
    axes = [axis.lstrip("~") for dim in side for axis in dim]
    return dict(zip(axes, c_strides(sizes[axis] for axis in axes)))
