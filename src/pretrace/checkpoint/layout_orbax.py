"""Orbax item folders: `orbax` with our own names, `maxtext` as MaxText trains on, in zarr chunks.

`orbax` is a tree of dicts whose keys, joined by dots, are canonical names; beside them `optimizer` and `step`. `maxtext` is
`<step>/items`, a TrainState: `params.params...` in the layouts of `tables_jax`, `opt_state.{mu,nu}.params...` and
`opt_state.count` (adam_pax), `step`. `_METADATA` lists the keys. Chunks (`layout_zarr`) lie in an OCDBT database (a
`StoreLayout`) or, without it, raw in files: `<name>/.zarray`, `<name>/0.0` ...
Read from orbax-checkpoint 0.12.8 and MaxText e591f30c.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.axes import parse
from pretrace.checkpoint.chunked import StoredArray
from pretrace.checkpoint.layout import Layout, PlannedFile, StoreLayout, known_file, refuse
from pretrace.checkpoint.layout_hf import CONFIG, json_bytes, their_config, without_state_and_tied_head
from pretrace.checkpoint.layout_zarr import arrays_of, zarr_files
from pretrace.checkpoint.moments import moments_of
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.optimizer_names import chosen, state_names, state_of
from pretrace.checkpoint.table import Move, Table
from pretrace.checkpoint.tables_jax import MAXTEXT
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import WriteOptions

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

CHUNK_BYTES = 32 << 20
OCDBT_CHUNK_BYTES = 4 << 20  # tensorstore holds several copies of a chunk while it compresses and commits
_SLOTS = {"exp_avg": "mu", "exp_avg_sq": "nu"}
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the arrays are."""

    views: dict[str, StateView]  # under their prefixes
    named: dict[str, str]  # key of each array -> tensor
    placed: frozenset[str]  # the optimizer's state that found a place
    notes: tuple[str, ...] = ()
    stacked: Mapping[str, int] = field(default_factory=dict)  # tensor -> the axis on which its layers are stacked


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout | StoreLayout:
    """A folder that Orbax restores: for `maxtext` `<step>/items`, for `orbax` the target itself."""
    weights, dropped = without_state_and_tied_head(view, spec)
    kept = tuple(name for name in state_names(view) if options.optimizer)
    if format == "orbax":
        tree = _canonical_tree(view, weights, kept, options)
    else:
        tree = _train_state(view, weights, kept, spec, options, _table(format, spec, options))
    top = "" if format == "orbax" else f"{options.step}/items/"
    config = known_file(f"{top}{CONFIG}", json_bytes(their_config(spec, weights.info(weights.names()[0]).dtype)))
    left = tuple(name for name in dropped if name not in tree.placed)
    return _stored(format, top, tree, config, options, left)


def _canonical_tree(view: StateView, weights: StateView, kept: tuple[str, ...], options: WriteOptions) -> _Tree:
    views: dict[str, StateView] = {"": chosen(view, (*weights.names(), *kept)), "step:": _number("step", options.step)}
    named = {name: name for name in views[""].names()} | {"step": "step:step"}
    if kept:
        views["count:"] = _number("count", _seen(view, options))
        named["optimizer.step"] = "count:count"
    return _Tree(views, named, frozenset(kept))


def _train_state(
    view: StateView, weights: StateView, kept: tuple[str, ...], spec: ModelSpec, options: WriteOptions, table: Table
) -> _Tree:
    views: dict[str, StateView] = {"": relabel(weights, table, spec), "step:": _number("step", options.step)}
    named = {name: name for name in views[""].names()} | {"step": "step:step"}
    stacked = _stacked(table, views[""].names())
    placed = frozenset(name for name in kept if name.split(".")[1] in _SLOTS)
    if not placed:
        return _Tree(views, named, placed, stacked=stacked)
    views["count:"] = _number("count", _seen(view, options))
    named["opt_state.count"] = "count:count"
    for kind in _SLOTS:
        moments = views[f"{kind}:"] = relabel(state_of(view, kind), moments_of(table, kind), spec)
        named |= {_below(kind, name): f"{kind}:{name}" for name in moments.names()}
    stacked |= {f"{kind}:{name}": axis for kind in _SLOTS for name, axis in stacked.items()}
    return _Tree(views, named, placed, _scaled_notes(spec), stacked)


def _stacked(table: Table, names: Iterable[str]) -> dict[str, int]:
    """The axis of the layers of the tensors that are stacks."""
    found: dict[str, int] = {}
    for name in names:
        match = table.match(name)
        axes = parse(match[0].axes).theirs if match is not None and isinstance(match[0], Move) else ()
        if ("L",) in axes:
            found[name] = axes.index(("L",))
    return found


def _number(name: str, value: int) -> StateView:
    return ArraysView({name: np.array(value, np.int32)})


def _seen(view: StateView, options: WriteOptions) -> int:
    """Updates that the optimizer has made."""
    seen = view.metadata().get("optimizer_step")
    return seen if type(seen) is int else options.step


def _table(format: str, spec: ModelSpec, options: WriteOptions) -> Table:
    if spec.family not in ("llama", "gpt2"):
        raise refuse(
            format, f"a {spec.family} model, MaxText has Llama and GPT-3 style decoders", "choose orbax, hf or dcp"
        )
    if options.scan_axis not in (None, 0, 1):
        raise refuse(format, f"layers stacked on axis {options.scan_axis}", "choose 0, 1 or unscanned layers")
    kind = "llama" if spec.family == "llama" else "gpt3" if options.fused_qkv else "gpt3 apart"
    how = "unscanned" if options.scan_axis is None else f"scanned on axis {options.scan_axis}"
    return next(table for table in MAXTEXT if table.name == f"maxtext {kind} {how}")


def _below(kind: str, name: str) -> str:
    """`params.params.decoder.x` -> `opt_state.mu.params.decoder.x`."""
    return f"opt_state.{_SLOTS[kind]}.{name.removeprefix('params.')}"


def _scaled_notes(spec: ModelSpec) -> tuple[str, ...]:
    if spec.family != "llama":
        return ()
    root = math.sqrt(spec.head_dim)
    return (
        f"the query is trained divided by sqrt(head_dim) = {root:g}: its updates equal those of a plain Adam with lr x {root:g}, "
        f"eps / {root:g}, weight decay / {root:g} on the query alone",
    )  # fmt: skip


def _stored(
    format: str, top: str, tree: _Tree, config: PlannedFile, options: WriteOptions, dropped: tuple[str, ...]
) -> Layout | StoreLayout:
    most = options.shard_bytes or (OCDBT_CHUNK_BYTES if options.ocdbt else CHUNK_BYTES)
    cut = arrays_of(tree.named, tree.stacked, United(tree.views), most)
    last = (config, *_marks(format, top, cut.arrays, options))
    if options.ocdbt:
        return StoreLayout(format, top.rstrip("/"), cut.arrays, (), last, cut.sources, dropped, tree.notes, cut.parts)
    files = tuple(file for array in cut.arrays for file in zarr_files(top, array))
    return Layout(format, (*files, *last), cut.sources, dropped, tree.notes, cut.parts)


def _marks(format: str, top: str, arrays: tuple[StoredArray, ...], options: WriteOptions) -> tuple[PlannedFile, ...]:
    """What Orbax asks for beside the arrays."""
    tree = {str(tuple(array.key.split("."))): _entry(array) for array in sorted(arrays, key=lambda a: a.key)}
    about = {"tree_metadata": tree, "use_ocdbt": options.ocdbt, "use_zarr3": False,
             "store_array_data_equal_to_fill_value": True, "custom_metadata": None}  # fmt: skip
    handlers: Any = _HANDLER if format == "orbax" else {"items": _HANDLER}
    save = {"item_handlers": handlers, "metrics": {}, "performance_metrics": {}, "init_timestamp_nsecs": None,
            "commit_timestamp_nsecs": None, "custom_metadata": {}}  # fmt: skip
    above = top.removesuffix("items/")
    return (known_file(f"{top}_METADATA", json.dumps(about).encode()),
            known_file(f"{above}_CHECKPOINT_METADATA", json.dumps(save).encode()))  # fmt: skip


def _entry(array: StoredArray) -> dict[str, Any]:
    keys = [{"key": key, "key_type": 2} for key in array.key.split(".")]  # 2: the key of a dict, or a field's name
    # As numpy arrays they are restored without a mesh; a restore that names shardings gets jax arrays.
    value = {"value_type": "np.ndarray", "skip_deserialize": False, "write_shape": list(array.shape)}
    return {"key_metadata": keys, "value_metadata": value}
