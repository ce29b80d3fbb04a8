"""The source as its copy would hold it, and whether what is left of the copy is that: repairs mix no two checkpoints."""

from __future__ import annotations

from pretrace.checkpoint.names import best_table, relabel
from pretrace.checkpoint.optimizer_names import weights_of
from pretrace.checkpoint.view import StateView
from pretrace.convert.cast import CastView
from pretrace.convert.source import Source
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

_BLOCK = 1 << 20


def in_dtype_of(there: StateView, opened: Source) -> StateView:
    """The source's weights in the dtype of what is there."""
    kinds = {there.info(name).dtype for name in there.names() if dtype(there.info(name).dtype).kind == "float"}
    weights = weights_of(opened.view)
    stored = {weights.info(name).dtype for name in weights.names()}
    if len(kinds) > 1 and kinds != stored:
        several = ", ".join(sorted(kinds))
        raise PretraceError(f"it has several dtypes ({several})", there.format, "convert again from the source")
    return weights if kinds == stored else CastView(weights, next(iter(kinds)))


def like(there: StateView, wanted: StateView, opened: Source, names: tuple[str, ...]) -> StateView:
    """`wanted` (canonical) under the names and in the layout of what is there; all of `names` have to be among them."""
    table = best_table(there)
    assert table is not None
    theirs = relabel(wanted, table, opened.model.spec)
    if lost := sorted(set(names) - set(theirs.names())):
        what = f"the source has no {lost[0]} ({len(lost)} tensors)"
        raise PretraceError(what, opened.path, "name the source of this checkpoint")
    return theirs


def can_be_told(there: StateView) -> None:
    """Refuses what is too little to tell its layout."""
    if not there.names() or best_table(there) is None:
        raise PretraceError(
            "too little is left of it to tell its layout", there.format, "convert again from the source"
        )


def same_values(there: StateView, theirs: StateView, names: list[str], where: str) -> None:
    """Refuses to mix two checkpoints: what is there has to be the source's."""
    for name in names:
        a, b = there.info(name), theirs.info(name)
        same = a.shape == b.shape and a.dtype == b.dtype
        for start in range(0, a.numel if same else 0, _BLOCK):
            stop = min(start + _BLOCK, a.numel)
            same = same and there.read(name, start, stop).tobytes() == theirs.read(name, start, stop).tobytes()
        if not same:
            raise PretraceError(f"{name} is there and is not the source's: another step, or another model", where,
                                "repair from the checkpoint that it was made from")  # fmt: skip
