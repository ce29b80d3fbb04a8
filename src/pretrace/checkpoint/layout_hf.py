"""transformers' folder: config.json and model.safetensors, or shards and their index.

safetensors: u64 little-endian length N, N bytes of JSON padded with spaces to a multiple of 8, then the tensors one after the
other. In shards: `model-00001-of-00003.safetensors` and `model.safetensors.index.json` with `metadata.total_size` and
`weight_map`. A head that is tied to the embedding is left out: transformers ties it by `tie_word_embeddings`.
A model of the `native` family keeps canonical names; its config.json is `{"model_type": "pretrace", "spec": ...}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.config import config_of
from pretrace.checkpoint.layout import Draft, Layout, PlannedFile, groups_of, known_file
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.optimizer_names import chosen, state_names
from pretrace.checkpoint.safetensors_header import NAMES
from pretrace.checkpoint.tables import HF
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import WriteOptions

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The folder that transformers loads. Optimizer state has no place in it."""
    weights, dropped = without_state_and_tied_head(view, spec)
    theirs = to_hf(weights, spec)
    files = sharded(theirs, options.shard_bytes)
    config = known_file(CONFIG, json_bytes(their_config(spec, theirs.info(theirs.names()[0]).dtype)))
    return Layout(format, (*files, config), theirs, dropped)


def to_hf(view: StateView, spec: ModelSpec) -> StateView:
    """A canonical view under transformers' names and layouts; a `native` model keeps canonical names."""
    return relabel(view, HF[spec.family], spec) if spec.family in HF else view


def without_state_and_tied_head(view: StateView, spec: ModelSpec) -> tuple[StateView, tuple[str, ...]]:
    """The weights that a file holds, and what was left out: optimizer state, and a head that is the embedding."""
    tied = ("head.weight",) if spec.tied_head and "head.weight" in view.names() else ()
    dropped = (*state_names(view), *tied)
    out = set(dropped)
    return chosen(view, (name for name in view.names() if name not in out)), dropped


def their_config(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """The config.json of the model, ours for a native one."""
    if spec.family in HF:
        return config_of(spec, dtype)
    return {"model_type": "pretrace", "spec": spec.model_dump(mode="json")}


def sharded(view: StateView, shard_bytes: int | None) -> tuple[PlannedFile, ...]:
    """The tensors of a view as one safetensors file, or as shards of at most `shard_bytes` with their index."""
    groups = tuple(groups_of(((name, view.info(name).size_bytes) for name in view.names()), shard_bytes))
    if len(groups) < 2:
        return (safetensors_file(ONE_FILE, view, view.names(), {"format": "pt"}),)
    paths = [f"model-{k + 1:05d}-of-{len(groups):05d}.safetensors" for k in range(len(groups))]
    files = [safetensors_file(path, view, names, {"format": "pt"}) for path, names in zip(paths, groups)]
    weight_map = {name: path for path, names in zip(paths, groups) for name in names}
    total = sum(view.info(name).size_bytes for name in view.names())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (*files, known_file(INDEX, json_bytes(index)))


def safetensors_file(path: str, view: StateView, names: tuple[str, ...], about: Mapping[str, str]) -> PlannedFile:
    """One safetensors file of `names`."""
    draft = Draft(path, view)
    draft.bytes(header_bytes(view, names, about))
    for name in names:
        draft.tensor(name)
    return draft.done()


def header_bytes(view: StateView, names: tuple[str, ...], about: Mapping[str, str]) -> bytes:
    """The length and the JSON header of a safetensors file that holds `names` in this order."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    at = 0
    for name in names:
        info = view.info(name)
        header[name] = {
            "dtype": NAMES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [at, at + info.size_bytes],
        }
        at += info.size_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def json_bytes(value: Any) -> bytes:
    """Indented JSON, as `files.write_json` writes it."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
