"""A comparison in words, for people: the sentence first, then the tensors that differ, those explained by one move together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pretrace.compare.fingerprint import PrintDifference
from pretrace.compare.names import kind_of, layer_of
from pretrace.compare.naming import source_layer
from pretrace.compare.result import Comparison, Difference, TensorDifference
from pretrace.compare.trajectory import SeriesComparison


def lines(found: Comparison | SeriesComparison | PrintDifference, limit: int) -> Iterator[str]:
    """Everything that is printed of a comparison of checkpoints, of runs, or of fingerprints."""
    if isinstance(found, SeriesComparison):
        yield from _series(found)
    elif isinstance(found, PrintDifference):
        yield from _prints(found, limit)
    else:
        yield sentence(found)
        yield from details(found, limit)
        yield from (f"  note: {note}" for note in found.notes if not note.startswith("layer"))


def sentence(found: Comparison) -> str:
    """The first line: same or different, and the totals."""
    return verdict(found) if found.same else f"{verdict(found)}   {totals(found)}"


def totals(found: Comparison) -> str:
    """The numbers of everything that could be compared, and how much that is."""
    if not found.total.numel:
        return f"nothing could be compared: {found.not_compared:,} elements have no partner of their shape"
    text = f"{numbers(found.total)}   {share(found.total)}"
    return f"{text}   ({found.not_compared:,} more have no partner of their shape)" if found.not_compared else text


def verdict(found: Comparison) -> str:
    """Same or different, without the totals."""
    total, n = found.total, len(found.tensors)
    if found.same:
        return f"Same: {n} tensors, {total.numel:,} elements, every bit equal."
    alone = len(found.only_in_a) + len(found.only_in_b)
    if not alone and all(t.same_numbers for t in found.different):
        how = "in another dtype" if any(t.dtype != t.dtype_b for t in found.different) else "under other bits"
        return f"The same numbers {how}: {len(found.different)} of {n} tensors."
    return f"Different: {len(found.different)} of {n} tensors." + (f" {alone} on one side only." if alone else "")


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
        return f"bitwise equal all {d.numel:,}"
    if d.unequal < d.numel / 1000:
        return f"bitwise equal all but {d.unequal:,} of {d.numel:,}"
    return f"bitwise equal {100 * d.bitwise_equal:.1f}% of {d.numel:,}"


def details(found: Comparison, limit: int) -> Iterator[str]:
    """One line for each group of tensors that differ in the same way, the most distant first."""
    whole = [note for note in found.notes if note.startswith("layer")]
    yield from (f"  {note}" for note in whole)
    groups = list(_groups(t for t in found.different if not (whole and source_layer(t))))
    for group in groups[:limit]:
        yield f"  {_called(group)}   {_how(group)}"
    if len(groups) > limit:
        yield f"  ... and {sum(map(len, groups[limit:])):,} more tensors (--all shows them)"
    for which, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        for name in names[:limit]:
            yield f"  {name}   only in {which}"
        if len(names) > limit:
            yield f"  ... and {len(names) - limit:,} more only in {which}"


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


def _series(found: SeriesComparison) -> Iterator[str]:
    runs = found.others
    if found.same:
        yield f"Same: {len(found.steps)} common steps, every bit equal."
    elif len(runs) == 1:
        yield f"Different from step {found.first_difference[runs[0]]} on ({len(found.steps)} common steps)."
    else:
        wins = {run: sum(s.nearest == run for s in found.steps) for run in runs}
        best = max(runs, key=lambda run: wins[run])
        told = sum(wins.values())
        yield (
            f"Nearest: {best}, at {wins[best]} of the {told} steps that tell."
            if told
            else "No step tells the runs apart."
        )
    for step in found.steps:
        marks = []
        for run, d in step.against.items():
            update = "" if d.one_minus_u_cos is None else f"  U.Cos {cosine(d.one_minus_u_cos)}"
            equal = "  same" if step.same[run] else ""
            marks.append(f"{run}: P.Cos 1-x = {d.one_minus_p_cos:.2g}  relative {d.rel_l2:.2g}{update}{equal}")
        margin = f"   nearest {step.nearest} by {step.margin:.3g} times" if step.margin is not None else ""
        yield f"  step {step.step:>8}   {'   '.join(marks)}{margin}"
    for run, missing in found.not_compared.items():
        if missing:
            yield f"  note: {run} has not {len(missing)} of the steps"


def _prints(found: PrintDifference, limit: int) -> Iterator[str]:
    if found.same:
        yield f"Same: {found.equal_tensors} tensors, every hash equal."
        return
    n = found.equal_tensors + len(found.different)
    yield (
        f"Different: {len(found.different)} of {n} tensors.   estimated from projections: P.Cos 1-x = {found.one_minus_p_cos:.2g}"
        f"   L2 {found.l2:.4g} +- {100 * found.error:.0f}%   relative {found.rel_l2:.2g}"
    )
    for which, names in (("", found.different), ("only in A", found.only_in_a), ("only in B", found.only_in_b)):
        yield from (f"  {name}   {which}".rstrip() for name in names[:limit])
        if len(names) > limit:
            yield f"  ... and {len(names) - limit:,} more (--all shows them)"


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
