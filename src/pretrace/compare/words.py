"""A comparison in words, for people: the sentence first, then the tensors that differ, those explained by one move together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pretrace.compare.names import kind_of, layer_of
from pretrace.compare.result import Comparison, Difference, TensorDifference


def sentence(found: Comparison) -> str:
    """The first line: same or different, and the totals."""
    total, n = found.total, len(found.tensors)
    if found.same:
        return f"Same: {n} tensors, {total.numel:,} elements, every bit equal."
    lead = f"Different: {len(found.different)} of {n} tensors."
    alone = len(found.only_in_a) + len(found.only_in_b)
    if alone:
        lead += f" {alone} on one side only."
    return f"{lead}   {numbers(total)}   {share(total)}"


def numbers(d: Difference) -> str:
    """P.Cos as 1-x, L2, relative L2, and the update cosine where there is a base."""
    text = f"P.Cos 1-x = {d.one_minus_p_cos:.2g}   L2 {d.l2:.4g}   relative {d.rel_l2:.2g}   max {d.max_abs:.3g}"
    return text if d.one_minus_u_cos is None else f"{text}   U.Cos {cosine(d.one_minus_u_cos)}"


def cosine(apart: float) -> str:
    """A cosine as people should read it: itself where it is far from 1, else as 1-x."""
    return f"{1 - apart:.4f}" if apart > 0.01 else f"1-x = {apart:.2g}"


def share(d: Difference) -> str:
    """How much is bitwise equal; never rounded up to all of it."""
    if d.unequal == 0:
        return f"bitwise equal {d.numel:,}"
    if d.unequal < d.numel / 1000:
        return f"bitwise equal all but {d.unequal:,} of {d.numel:,}"
    return f"bitwise equal {100 * d.bitwise_equal:.1f}% of {d.numel:,}"


def details(found: Comparison, limit: int) -> Iterator[str]:
    """One line for each group of tensors that differ in the same way, the most distant first."""
    whole = [note for note in found.notes if note.startswith("layer")]
    yield from (f"  {note}" for note in whole)
    groups = list(_groups(t for t in found.different if not (whole and _same_tensor_of_layer(t))))
    for group in groups[:limit]:
        yield f"  {_called(group)}   {_how(group)}"
    if len(groups) > limit:
        yield f"  ... and {sum(map(len, groups[limit:])):,} more tensors (--all shows them)"
    for which, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        for name in names[:limit]:
            yield f"  {name}   only in {which}"
        if len(names) > limit:
            yield f"  ... and {len(names) - limit:,} more only in {which}"


def exchanged(tensors: Iterable[TensorDifference]) -> list[str]:
    """What the moves say about whole layers: exchanged, or copies of one another."""
    came: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for tensor in tensors:
        if source := _same_tensor_of_layer(tensor):
            came.setdefault(layer_of(tensor.name), set()).add(source)
            count[layer_of(tensor.name)] = count.get(layer_of(tensor.name), 0) + 1
    single = {to: next(iter(of)) for to, of in came.items() if len(of) == 1}
    notes = []
    for to, of in sorted(single.items(), key=lambda item: int(item[0])):
        if single.get(of) != to:
            notes.append(f"layer {to} of B is layer {of} of A, bit for bit ({count[to]} tensors)")
        elif int(of) > int(to):
            notes.append(f"layers {to} and {of} are exchanged, bit for bit ({count[to]} + {count[of]} tensors)")
    return notes


def _same_tensor_of_layer(tensor: TensorDifference) -> str:
    """The layer of A whose tensor of this kind B has here; '' if it is not so."""
    source = re.fullmatch(r"equals (\S+) of A", tensor.move)
    if source is None or kind_of(source[1]) != kind_of(tensor.name) or not layer_of(tensor.name):
        return ""
    return layer_of(source[1])


def _groups(tensors: Iterable[TensorDifference]) -> Iterator[list[TensorDifference]]:
    groups: dict[tuple[str, ...], list[TensorDifference]] = {}
    for tensor in tensors:
        explained = bool(tensor.move) and layer_of(tensor.name) != ""
        key = (kind_of(tensor.name), re.sub(r"\.\d+\.", ".{i}.", tensor.move)) if explained else (tensor.name,)
        groups.setdefault(key, []).append(tensor)
    return iter(groups.values())


def _called(group: list[TensorDifference]) -> str:
    if len(group) == 1:
        return group[0].name
    layers = sorted(int(layer_of(t.name)) for t in group)
    first = group[0].name
    at = first.index(f".{layer_of(first)}.") if f".{layer_of(first)}." in first else 0
    shown = ",".join(map(str, layers)) if len(layers) < 7 else f"{layers[0]},{layers[1]},..,{layers[-1]}"
    return f"{first[:at]}.{{{shown}}}.{kind_of(first)} ({len(group)} tensors)"


def _how(group: list[TensorDifference]) -> str:
    tensor = group[0]
    parts = []
    if tensor.difference is not None:
        parts.append(f"1-cos {tensor.difference.one_minus_p_cos:.2g}")
    if tensor.move:
        parts.append(f"{_explained(tensor.move)}. Likely: {tensor.tool}.")
    if tensor.note:
        parts.append(tensor.note)
    if tensor.difference is not None and not tensor.move and not tensor.note:
        parts.append(f"relative {tensor.difference.rel_l2:.2g}   {share(tensor.difference)}")
    return "   ".join(parts)


# Moves that keep every value: what the reader sees first is that nothing is lost.
_VALUES_CHANGE = ("scale", "add or", "swap bytes", "read ", "reshape")


def _explained(move: str) -> str:
    if move.startswith("equals "):
        return move
    return (
        f"equals A after {move}"
        if move.startswith(_VALUES_CHANGE)
        else f"same values in another order: equals A after {move}"
    )
