"""Two layers of layout as one: links from the target straight to the files, where index arithmetic allows it.

A converted tensor is read through a canonical one: theirs <- ours <- stored. Read layer by layer, a transposed tensor is
put into pieces twice. When both links are boxes in the same mixed-radix index, they multiply out to one box. Where the inner
link's targets are a run, its index is that radix (`_through`); where they have gaps (a layer of a stack on an inner axis, a
chunk), the two boxes meet digit by digit (`_meeting`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from pretrace.checkpoint.links import Link, clip, normal


def compose(outer: Link, inner: tuple[Link, ...]) -> tuple[Link, ...] | None:
    """The links of `outer`'s target to the sources of `inner`, the links of `outer`'s source; None if they are no boxes.

    `inner` must cover the part of its target that `outer` reads.
    """
    if _takes_all(outer, inner):
        return tuple(normal(replace(one, target_offset=one.target_offset + outer.target_offset)) for one in inner)
    made: list[Link] = []
    for one in inner:
        if not _is_range(one):
            met = _meeting(outer, one)
            if met is None:
                return None
            made += met
            continue
        if len(inner) == 1 and one.target_offset == 0:
            parts = [outer]
        else:
            begin = one.target_offset
            parts = [part.turned(outer.source) for part in clip(outer.turned(""), begin, begin + one.numel)]
        for part in parts:
            link = _through(part, one)
            if link is None:
                return None
            made.append(link)
    if sum(link.numel for link in made) != outer.numel:
        return None
    return tuple(sorted(made, key=lambda link: link.target_offset))


def _takes_all(outer: Link, inner: tuple[Link, ...]) -> bool:
    """Whether `outer` is the whole middle tensor as it is: then the answer is `inner`, whatever its boxes are."""
    as_it_is = outer.target_strides in ((), (1,)) and outer.source_strides in ((), (1,)) and outer.source_offset == 0
    return as_it_is and sum(one.numel for one in inner) == outer.numel


def _is_range(link: Link) -> bool:
    """Whether the targets of a normal link are a run of elements without a gap, in row-major order of its axes."""
    expected = 1
    for n, stride in zip(reversed(link.sizes), reversed(link.target_strides)):
        if stride != expected:
            return False
        expected *= n
    return True


def _through(outer: Link, inner: Link) -> Link | None:
    """`outer` with its source indices replaced by what `inner` reads there; the middle index is a number in mixed radix."""
    radix = tuple(zip(inner.target_strides, inner.sizes, inner.source_strides))  # slowest digit first
    rest = outer.source_offset - inner.target_offset
    used: list[int] = []
    for stride, _, _ in radix:
        used.append(rest // stride)
        rest %= stride
    source_offset = inner.source_offset + sum(digit * axis[2] for digit, axis in zip(used, radix))
    axes: list[tuple[int, int, int]] = []
    for n, target, middle in zip(outer.sizes, outer.target_strides, outer.source_strides):
        broken = _broken(n, target, middle, radix, used)
        if broken is None:
            return None
        axes += broken
    # A digit that ran over would be a carry, which no stride describes.
    if any(top >= axis[1] for top, axis in zip(used, radix)):
        return None
    sizes, targets, sources = (tuple(axis[k] for axis in axes) for k in range(3))
    return normal(Link(inner.source, sizes, targets, sources, outer.target_offset, source_offset))


def _meeting(outer: Link, inner: Link) -> tuple[Link, ...] | None:
    """What `outer` reads of the elements that `inner` makes: a box, nothing, or None where that is no box.

    The strides of both in the middle tensor are the weights of one mixed radix. If each box is a range of every digit, so is
    what they share.
    """
    weights = sorted({1, *outer.source_strides, *inner.target_strides})
    if any(above % below for below, above in pairwise(weights)):
        return None
    reads = _digits(weights, outer.source_offset, zip(outer.source_strides, outer.sizes, outer.target_strides))
    makes = _digits(weights, inner.target_offset, zip(inner.target_strides, inner.sizes, inner.source_strides))
    if reads is None or makes is None:
        return None
    axes: list[tuple[int, int, int]] = []
    target, source = outer.target_offset, inner.source_offset
    for (first, n, to), (begin, m, of) in zip(reads, makes, strict=True):
        low, high = max(first, begin), min(first + n, begin + m)
        if low >= high:
            return ()
        axes.append((high - low, to, of))
        target, source = target + (low - first) * to, source + (low - begin) * of
    sizes, targets, sources = (tuple(axis[k] for axis in axes) for k in range(3))
    return (normal(Link(inner.source, sizes, targets, sources, target, source)),)


def _digits(weights: list[int], offset: int, axes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]] | None:
    """A box as (first value, values, stride elsewhere) of each digit; `axes` are (stride, size, stride elsewhere)."""
    bounds = [above // below for below, above in pairwise(weights)]
    firsts = [offset // weight % bound for weight, bound in zip(weights, bounds)] + [offset // weights[-1]]
    found = [(first, 1, 0) for first in firsts]
    for stride, size, other in axes:
        digit = weights.index(stride)
        while size > 1:
            here = min(size, bounds[digit]) if digit < len(bounds) else size
            if size % here or found[digit][1] > 1 or (digit < len(bounds) and firsts[digit] + here > bounds[digit]):
                return None  # a carry, or two axes on one digit
            found[digit] = (firsts[digit], here, other)
            size, other, digit = size // here, other * here, digit + 1
    return found


def _broken(
    n: int, target: int, middle: int, radix: tuple[tuple[int, int, int], ...], used: list[int]
) -> list[tuple[int, int, int]] | None:
    """An axis as axes that each move one digit: (size, target stride, source stride). `used` counts the digits' largest."""
    made = []
    while n > 1:
        digit = next((k for k, axis in enumerate(radix) if axis[0] <= middle), None)
        if digit is None or middle % radix[digit][0]:
            return None
        stride, size, source = radix[digit]
        step = middle // stride
        here = n
        if used[digit] + (n - 1) * step >= size:
            if size % step or n % (size // step):
                return None
            here = size // step
        used[digit] += (here - 1) * step
        if here > 1:
            made.append((here, target, source * step))
        elif n > 1:
            return None  # a digit of one value between: no published layout has it
        n, target, middle = n // here, target * here, middle * here
    return made
