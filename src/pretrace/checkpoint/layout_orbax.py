"""Orbax item folders: `orbax` with our own names, `maxtext` as MaxText trains on, in zarr chunks.

`orbax` is a tree of dicts whose keys, joined by dots, are canonical names; beside them `optimizer` and `step`. `maxtext` is
`<step>/items`, a TrainState: `params.params...` in the layouts of `tables_jax`, `opt_state.{mu,nu}.params...` and
`opt_state.count` (adam_pax), `step`. `_METADATA` lists the keys. Chunks follow each other in the array's own order and lie in
an OCDBT database (a `StoreLayout`) or, without it, raw in files: `<name>/.zarray`, `<name>/0.0` ...
Read from orbax-checkpoint 0.12.8 and MaxText e591f30c.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.layout import RESAVE, Block, Layout, PlannedFile, StoredArray, StoreLayout, known_file, refuse
from pretrace.checkpoint.layout_hf import CONFIG, json_bytes, their_config, without_state_and_tied_head
from pretrace.checkpoint.moments import moments_of
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.optimizer_names import chosen, state_names, state_of
from pretrace.checkpoint.table import Table
from pretrace.checkpoint.tables_jax import MAXTEXT
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import WriteOptions
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

CHUNK_BYTES = 32 << 20
OCDBT_CHUNK_BYTES = 8 << 20  # tensorstore holds several copies of a chunk while it compresses and commits
_SLOTS = {"exp_avg": "mu", "exp_avg_sq": "nu"}
_CODES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "bfloat16", "int32": "<i4", "int64": "<i8"}
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the arrays are: views under prefixes, key of each array -> tensor, the state that found a place, and remarks."""

    views: dict[str, StateView]
    named: dict[str, str]
    placed: frozenset[str]
    notes: tuple[str, ...] = ()


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
    placed = frozenset(name for name in kept if name.split(".")[1] in _SLOTS)
    if not placed:
        return _Tree(views, named, placed)
    views["count:"] = _number("count", _seen(view, options))
    named["opt_state.count"] = "count:count"
    for kind in _SLOTS:
        moments = views[f"{kind}:"] = relabel(state_of(view, kind), moments_of(table, kind), spec)
        named |= {_below(kind, name): f"{kind}:{name}" for name in moments.names()}
    return _Tree(views, named, placed, _scaled_notes(spec))


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
    sources = United(tree.views)
    most = options.shard_bytes or (OCDBT_CHUNK_BYTES if options.ocdbt else CHUNK_BYTES)
    arrays = tuple(_array(key, tensor, sources, most) for key, tensor in tree.named.items())
    last = (config, *_marks(format, top, arrays, options))
    if options.ocdbt:
        return StoreLayout(format, top.rstrip("/"), arrays, (), last, sources, dropped, tree.notes)
    files = tuple(file for array in arrays for file in zarr_files(top, array))
    return Layout(format, (*files, *last), sources, dropped, tree.notes)


def _array(key: str, tensor: str, sources: United, most: int) -> StoredArray:
    info = sources.info(tensor)
    if info.dtype not in _CODES:
        raise PretraceError(f"arrays of {info.dtype} are not written into zarr", tensor, RESAVE)
    return StoredArray(key, tensor, info.dtype, info.shape, chunk_shape(info.shape, dtype(info.dtype).itemsize, most))


def chunk_shape(shape: tuple[int, ...], itemsize: int, most: int) -> tuple[int, ...]:
    """Chunks of at most `most` bytes that are runs of the array in its own order, all of one size.

    >>> chunk_shape((6, 4), 4, 48), chunk_shape((6, 40), 4, 48), chunk_shape((6, 4), 4, 1000)
    ((3, 4), (1, 10), (6, 4))
    """
    chunks = list(shape)
    for axis, n in enumerate(shape):
        below = math.prod(shape[axis + 1 :]) * itemsize
        fits = max(1, most // below) if below else n
        chunks[axis] = max((k for k in range(1, min(n, fits) + 1) if n % k == 0), default=1)
        if below <= most:
            break
    return tuple(chunks)


def zarr_metadata(array: StoredArray, compressor: dict[str, Any] | None) -> dict[str, Any]:
    """The `.zarray` of version 2, as tensorstore writes it."""
    return {
        "chunks": list(array.chunks), "compressor": compressor, "dimension_separator": ".", "dtype": _CODES[array.dtype],
        "fill_value": None, "filters": None, "order": "C", "shape": list(array.shape), "zarr_format": 2,
    }  # fmt: skip


def zarr_files(top: str, array: StoredArray) -> list[PlannedFile]:
    """An array as plain files: its metadata, and each chunk raw."""
    about = json.dumps(zarr_metadata(array, None), separators=(",", ":")).encode()
    files = [known_file(f"{top}{array.key}/.zarray", about)]
    itemsize, n = dtype(array.dtype).itemsize, math.prod(array.chunks)
    for at, index in enumerate(chunk_indices(array)):
        key = ".".join(map(str, index)) or "0"
        files.append(PlannedFile(f"{top}{array.key}/{key}", (Block(0, array.tensor, at * n, (at + 1) * n, itemsize),)))
    return files


def chunk_indices(array: StoredArray) -> list[tuple[int, ...]]:
    """The chunks' places in the grid, in the order of their elements: chunk k holds elements [k n, (k + 1) n)."""
    grid = [range(n // c) for n, c in zip(array.shape, array.chunks)]
    return list(itertools.product(*grid))


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
