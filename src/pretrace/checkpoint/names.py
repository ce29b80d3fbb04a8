"""Canonical names: their tensors as ours, and ours as theirs, by the tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.axes import Part, link, parse, shape_of, sizes_of
from pretrace.checkpoint.config import Dims, dims_of
from pretrace.checkpoint.links import Link, whole
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.table import Ignored, Move, Table, backwards, has_block, numbered
from pretrace.checkpoint.tables import ALL
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.errors import PretraceError

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_ORDER = ("embed.", "pos_embed.", "norm1.", "attn.q.", "attn.k.", "attn.v.", "attn.out.", "norm2.", "mlp.up.", "mlp.gate.",
          "mlp.down.", "final_norm.", "head.")  # fmt: skip
STATE = ("optimizer.", "opt_state.", "opt_states_", "optim.")  # names of optimizer state beside the weights
_CANONICAL = re.compile(
    r"(embed|pos_embed|head)\.weight|final_norm\.(weight|bias)"
    r"|blocks\.(0|[1-9]\d{0,5})\.(norm[12]|attn\.(q|k|v|out)|mlp\.(up|gate|down))\.(weight|bias)"
)


@dataclass(frozen=True, slots=True)
class Naming:
    """What the tables make of the names in a file."""

    table: str  # name of the table; 'canonical' if the names are ours already; '' if none fits
    unmatched: tuple[str, ...]  # names that the table does not know
    ignored: tuple[str, ...]  # buffers that are no parameters
    state: tuple[str, ...] = ()  # optimizer state
    tied: bool = False  # the head is stored as another name of the embedding


def best_table(view: StateView, tables: Iterable[Table] = ALL) -> Table | None:
    """The table that knows the most of the names; None if none knows at least half of them (optimizer state aside)."""
    told = view.metadata().get("table")  # a format that knows which layout it holds
    if told is not None:
        return next((table for table in tables if table.name == told), None)
    grouped = view.metadata().get("grouped", False)
    infos = [view.info(name) for name in view.names() if not is_state(name)]
    if tables is ALL:
        return _best_of_all(tuple((info.name, info.shape) for info in infos), grouped)
    return _best(infos, tables, grouped)


@lru_cache(maxsize=16)  # a comparison asks four times for the same names, at 25 ms each
def _best_of_all(named: tuple[tuple[str, tuple[int, ...]], ...], grouped: Any) -> Table | None:
    return _best([TensorInfo(name, "", shape, "") for name, shape in named], ALL, grouped)


def _best(infos: list[TensorInfo], tables: Iterable[Table], grouped: Any) -> Table | None:
    scored = [(table.score(infos), table) for table in tables if table.grouped in (None, grouped)]
    best = max(scored, key=lambda pair: pair[0], default=(0, None))
    return best[1] if best[0] * 2 >= len(infos) and best[0] > 0 else None


def is_state(name: str) -> bool:
    """Whether a tensor is optimizer state or the step, not a weight."""
    return name.removeprefix("state.").startswith(STATE) or name == "step"  # Paxml may put `state.` before all


def is_canonical(names: Iterable[str]) -> bool:
    """Whether at least half of the names are ours."""
    listed = tuple(names)
    return bool(listed) and sum(bool(_CANONICAL.fullmatch(n)) for n in listed) * 2 >= len(listed)


def naming(view: StateView, table: Table | None = None) -> Naming:
    """Which table fits, and which names it leaves over."""
    state = tuple(n for n in view.names() if is_state(n))
    names = tuple(n for n in view.names() if not is_state(n))
    if table is None and is_canonical(names):
        return Naming("canonical", tuple(n for n in names if not _CANONICAL.fullmatch(n)), (), state)
    table = table or best_table(view)
    if table is None:
        return Naming("", names, (), state)
    found = {name: table.match(name) for name in names}
    ignored = tuple(n for n, m in found.items() if m and isinstance(m[0], Ignored))
    return Naming(
        table.name, tuple(n for n, m in found.items() if m is None), ignored, state, _head_is_embedding(view, table)
    )


def canonical(view: StateView, model: ModelSpec | Dims | None = None, *, table: Table | None = None) -> StateView:
    """The same tensors under canonical names and layouts (fused QKV split, Conv1D transposed, stacked layers apart).

    `model` gives head counts; left out, they are read from the view's `config`. The result's metadata has `naming`. Names
    that the table does not know are left out and listed there.

    Raises
    ------
    PretraceError
        If no table fits the names, or a shape does not fit the layout.
    """
    known = naming(view, table)
    metadata = {**view.metadata(), "naming": known}
    if known.table == "canonical":
        ours = sorted(set(view.names()) - set(known.unmatched) - set(known.state), key=canonical_key)
        kept = {name: Wired(view.info(name), (whole(name, view.info(name).shape),)) for name in ours}
        return RewiredView(view, kept, metadata)
    table = table or best_table(view)
    if table is None:
        shown = ", ".join(view.names()[:3])
        raise PretraceError(
            f"no table knows these names ({shown} ...)", view.format, "compare or audit the tensors by their own names"
        )
    dims = _dims(view, model)
    made: dict[str, Wired] = {}
    for name in view.names():
        match = table.match(name)
        if match is not None and isinstance(match[0], Move):
            made |= _parts_of(view.info(name), match[0], match[1], dims)
    if known.tied:
        made.pop("head.weight", None)  # the same bytes as the embedding: one parameter
    return RewiredView(view, dict(sorted(made.items(), key=lambda item: canonical_key(item[0]))), metadata)


def relabel(view: StateView, table: Table, model: ModelSpec | Dims) -> StateView:
    """A canonical view under the names and in the layout of `table`: the inverse of `canonical`."""
    dims = model if isinstance(model, Dims) else Dims.of(model)
    have = {name: view.info(name) for name in view.names()}
    made: dict[str, Wired] = {}
    for theirs, move, blocks in _their_names(table, dims.n_layers):
        wired = _fused(theirs, move, blocks, have, dims)
        if wired is not None:
            made[theirs] = wired
    used = {one.source for wired in made.values() for one in wired.links}
    if left := [name for name in have if name not in used]:
        raise PretraceError(
            f"{table.name} has no place for {left[0]} ({len(left)} tensors)",
            left[0],
            "choose the layout of this family",
        )
    return RewiredView(view, made)


def module_order(names: Iterable[str], table: Table) -> tuple[str, ...]:
    """Their names as a module lists its parameters: embeddings, block after block, final norm, head."""

    def key(name: str) -> tuple[int, int, int, str]:
        match = table.match(name)
        assert match is not None, name
        assert isinstance(match[0], Move), name
        return canonical_key(numbered(match[0].parts[0], match[1]))

    return tuple(sorted(names, key=key))


def _head_is_embedding(view: StateView, table: Table) -> bool:
    """Whether the file stores the head as another name of the embedding's bytes (torch files tell)."""
    for group in view.metadata().get("tied", ()):
        rules = [table.match(name) for name in group]
        if {"embed.weight", "head.weight"} <= {r[0].ours for r in rules if r and isinstance(r[0], Move)}:
            return True
    return False


def canonical_key(name: str) -> tuple[int, int, int, str]:
    """Sorts canonical names in the decoder's order: embeddings, blocks, final norm, head."""
    parts = name.split(".")
    if parts[0] == "blocks" and len(parts) > 2:
        block, rest = int(parts[1]), ".".join(parts[2:])
        return (1, block, _place(rest), name.replace("bias", "~bias"))
    return (0 if parts[0] in ("embed", "pos_embed") else 2, 0, _place(name), name.replace("bias", "~bias"))


def _place(rest: str) -> int:
    return next((k for k, start in enumerate(_ORDER) if rest.startswith(start)), len(_ORDER))


def _dims(view: StateView, model: ModelSpec | Dims | None) -> Dims:
    if isinstance(model, Dims):
        return model
    if model is not None:
        return Dims.of(model)
    return dims_of(view.metadata().get("config")) or Dims()


def _parts_of(info: TensorInfo, move: Move, block: int | None, dims: Dims) -> dict[str, Wired]:
    """Our tensors that one of theirs holds."""
    if not move.axes:
        name = _named(move.ours, block)
        return {name: Wired(_info(name, info, info.shape), (whole(info.name, info.shape),))}
    pattern = parse(move.axes)
    cuts, along = _cuts(move, dims)
    sizes = sizes_of(pattern.theirs, info.shape, dims.sizes() | along, info.name)
    scale = dims.scale(move.scale)
    stacked = block is None and has_block(move.ours)
    made: dict[str, Wired] = {}
    for i in range(sizes["L"]) if stacked else (block,):
        picked = (("L", i),) if stacked and i is not None else ()
        for ours, (start, size) in zip(move.parts, cuts, strict=True):
            part = Part(move.along, start, size, picked, dims.rotary_lanes)
            name = _named(ours, i)
            shape = shape_of(pattern.ours, sizes | ({move.along: size} if move.along else {}))
            made[name] = Wired(
                _info(name, info, shape), link(pattern, info.name, sizes, part), move.words, scale=scale, plus=move.plus
            )
    return made


def _fused(
    theirs: str, move: Move, blocks: range | tuple[int | None], have: Mapping[str, TensorInfo], dims: Dims
) -> Wired | None:
    """One of their tensors, put together from ours; None if it is optional and not there."""
    names = [_named(part, i) for i in blocks for part in move.parts]
    if not any(name in have for name in names):
        if move.optional:
            return None
        raise PretraceError(
            f"{theirs} needs {names[0]}, which is not there", names[0], "the checkpoint is not complete for this layout"
        )
    first = have[names[0]]
    where = first.where
    if not move.axes:
        return Wired(TensorInfo(theirs, first.dtype, first.shape, where), (whole(names[0], first.shape),))
    pattern = parse(move.axes)
    cuts, along = _cuts(move, dims)
    first_along = {move.along: cuts[0][1]} if move.along else {}
    sizes = sizes_of(pattern.ours, first.shape, dims.sizes() | first_along, names[0]) | along
    if len(blocks) > 1 or (blocks[0] is not None and not has_block(move.theirs)):
        sizes["L"] = len(blocks)
    links: list[Link] = []
    for i in blocks:
        picked = (("L", i),) if "L" in sizes and i is not None else ()
        for ours, (start, size) in zip(move.parts, cuts, strict=True):
            part = Part(move.along, start, size, picked, dims.rotary_lanes)
            links += (one.turned(_named(ours, i)) for one in link(pattern, theirs, sizes, part))
    shape = shape_of(pattern.theirs, sizes)
    scale = dims.scale(move.scale)
    info = TensorInfo(theirs, first.dtype, shape, where)
    return Wired(info, tuple(links), backwards(move.words), scale=1 / scale, plus=-move.plus / scale)


def _cuts(move: Move, dims: Dims) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """(start, size) of each part along the cut axis, and that axis' whole size; q, k, v differ with grouped queries."""
    n = len(move.parts)
    if not move.along:
        return [(0, 0)], {}
    named = {axis for dim in parse(move.axes).theirs for axis in dim}
    widths = [1] * n
    if n == 3 and "h" not in named and dims.n_heads and dims.n_kv_heads:
        queries, keys = (dims.n_heads // dims.n_kv_heads, 1) if "g" in named else (dims.n_heads, dims.n_kv_heads)
        widths = [queries, keys, keys]
    starts = [sum(widths[:k]) for k in range(n)]
    return list(zip(starts, widths)), {move.along: sum(widths)}


def _their_names(table: Table, n_layers: int) -> list[tuple[str, Move, Any]]:
    listed: list[tuple[str, Move, Any]] = []
    for move in table.moves:
        if has_block(move.theirs):
            listed += ((table.before[0] + numbered(move.theirs, i), move, (i,)) for i in range(n_layers))
        else:
            name = table.before[0] + numbered(move.theirs, None, n_layers)
            listed.append((name, move, range(n_layers) if has_block(move.ours) else (None,)))
    return listed


def _named(pattern: str, block: int | None) -> str:
    return numbered(pattern, block)


def _info(name: str, theirs: TensorInfo, shape: tuple[int, ...]) -> TensorInfo:
    assert math.prod(shape) <= theirs.numel
    return TensorInfo(name, theirs.dtype, shape, theirs.where)
