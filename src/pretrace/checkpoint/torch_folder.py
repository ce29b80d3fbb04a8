"""Checkpoints that are plain torch files: pytorch_model.bin with its shards, one .pt, nanoGPT's ckpt.pt."""

from __future__ import annotations

from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.optimizer_settings import adam_settings
from pretrace.checkpoint.pickle_globals import TensorRef
from pretrace.checkpoint.sources import Folder
from pretrace.checkpoint.torch_file import TorchFile, TorchView, aliases, open_torch
from pretrace.checkpoint.torch_objects import plain_of, tensors_in
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.weight_map import disagreements, read_weight_map
from pretrace.findings import Finding

# Where savers put the weights beside other things; their tensors are listed without this key.
_WEIGHTS = ("model", "module", "state_dict", "model_state_dict", "model_state")
_STEPS = ("iter_num", "step", "global_step", "iteration", "global_steps")


def open_torch_files(folder: Folder, names: list[str], index: str | None = None) -> StateView:
    """A view of the tensors in the torch files `names`; `index` is their `*.index.json`, if they have one.

    Weights are listed under their own names, everything else (optimizer state) under the key it stands in.

    Raises
    ------
    DamagedFile
        If there is one file only, and it is damaged.
    """
    tensors: dict[str, tuple[TorchFile, TensorRef]] = {}
    found: list[Finding] = []
    metadata: dict[str, Any] = {}
    kind = "torch"
    for name in names:
        try:
            file = open_torch(folder.open(name))
        except DamagedFile as error:
            if len(names) == 1 and index is None:
                raise
            found.append(error.finding())
            continue
        found += file.findings
        kind = "torch-zip" if file.zip is not None else "torch-legacy"
        metadata |= _about(file.value)
        start = "optimizer." if name.startswith("optim") else ""
        for key, ref in _named(file.value):
            if start + key in tensors:
                where = tensors[start + key][0].source.name
                what = f"{key} stands in two files: readers disagree which one counts"
                found.append(
                    said(
                        "index-two-files",
                        "error",
                        what,
                        f"{file.source.name}: {key}",
                        "remove one of them",
                        also_in=where,
                    )
                )
            else:
                tensors[start + key] = (file, ref)
    view = TorchView(kind, tensors, metadata | {"tied": aliases(tensors)}, ())
    if index is not None:
        found += disagreements(read_weight_map(folder, index), folder, {name: view.info(name) for name in view.names()})
    return view.having(tuple(found))


def _named(value: Any) -> list[tuple[str, TensorRef]]:
    weights = _weights_key(value)
    listed = []
    for name, ref in tensors_in(value):
        if weights and name.startswith(weights + "."):
            name = name[len(weights) + 1 :]
        listed.append((name, ref))
    return listed


def _weights_key(value: Any) -> str:
    """The key that holds the weights, in a dict of several things."""
    if not isinstance(value, dict) or any(isinstance(v, TensorRef) for v in value.values()):
        return ""
    return next((key for key in _WEIGHTS if isinstance(value.get(key), dict)), "")


def _about(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not _weights_key(value):
        return {}
    rest = {key: item for key, item in value.items() if key not in _WEIGHTS and not str(key).startswith("optim")}
    made: dict[str, Any] = {"saved": plain_of(rest)}
    if isinstance(value.get("model_args"), dict):  # nanoGPT: n_layer, n_head, n_embd, block_size, bias, vocab_size
        made["config"] = plain_of(value["model_args"])
    optimizer = value.get("optimizer")
    if isinstance(optimizer, dict) and (settings := adam_settings(plain_of(optimizer.get("param_groups")))):
        made["adam"] = settings
    step = next((value[key] for key in _STEPS if type(value.get(key)) is int), None)
    return made if step is None else made | {"step": step}
