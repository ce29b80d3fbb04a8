"""Checkpoints of a run: weights that transformers loads as they are, and the state that training needs to go on.

step-00000128/
  model.safetensors  config.json  tokenizer.json   weights in the published dtype
  train_state/tensors.safetensors                   parameters and moments in full precision
  train_state/position.json                         counters, loss scale, digest of the recipe
  manifest.json                                     written last; a folder without it does not count
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_hf import write_hf, write_safetensors
from pretrace.dtypes import from_float32
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_folder, forget, read_json, verify_manifest, write_json
from pretrace.model.state import load, snapshot
from pretrace.recipe.spec import CheckpointSpec
from pretrace.step.loss_scale import LossScaleState
from pretrace.train.folder import RunFolder
from pretrace.train.update import Training

STATE = "train_state"
_PARAM = "param."


def save(training: Training, run: RunFolder, tokenizer: Path | None = None) -> Path:
    """Writes the checkpoint of the current step, verifies it by reading it back, then drops old training states.

    Raises
    ------
    PretraceError
        If it cannot be written (then earlier checkpoints are as they were), or reads back differently.
    """
    target = run.checkpoint(training.step)
    with atomic_folder(target, replace=True, step=training.step, recipe=training.recipe.digest()) as folder:
        _write_weights(training, folder, tokenizer)
        (folder / STATE).mkdir()
        _write_state(training, folder / STATE)
    verify_manifest(target)
    drop_old_states(run, training.recipe.checkpoints)
    return target


def _write_weights(training: Training, folder: Path, tokenizer: Path | None) -> None:
    kind = training.recipe.checkpoints.dtype
    write_hf(folder, weights_view(training, kind), training.recipe.model)
    if tokenizer is not None:
        with naming(tokenizer, "copying the tokenizer"):
            shutil.copyfile(tokenizer, folder / "tokenizer.json")


def weights_view(training: Training, kind: str) -> StateView:
    """The parameters rounded to `kind`, as a view in canonical names."""
    arrays = {name: from_float32(a, kind) for name, a in snapshot(training.state.model).items()}
    return ArraysView(arrays, dtypes=dict.fromkeys(arrays, kind))


def _write_state(training: Training, folder: Path) -> None:
    state = training.state
    tensors = {_PARAM + name: p.detach() for name, p in state.params.items()}
    for slot, moments in state.optimizer.tensors.items():
        tensors |= {f"{slot}.{name}": t for name, t in moments.items()}
    arrays, kinds = {}, {}
    for name, tensor in tensors.items():
        arrays[name], kinds[name] = _array(tensor)
    write_safetensors(folder / "tensors.safetensors", ArraysView(arrays, dtypes=kinds), {"format": "pt"})
    write_json(folder / "position.json", {
        "version": 1,
        "step": training.step,
        "updates_applied": state.optimizer.step,
        "updates_since_start": state.updates_since_start,
        "arrival": None if state.arrival is None else list(state.arrival),
        "loss_scale": _plain(state.loss_scale),
        "recipe": training.recipe.digest(),
    })  # fmt: skip


def _array(tensor: torch.Tensor) -> tuple[NDArray[Any], str]:
    tensor = tensor.detach().cpu().contiguous()
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind == "bfloat16":
        return tensor.view(torch.uint16).numpy(), kind
    return tensor.numpy(), kind


def _plain(scale: LossScaleState) -> dict[str, Any]:
    return {name: getattr(scale, name) for name in scale.__dataclass_fields__}


def restore(training: Training, checkpoint: Path) -> None:
    """Puts the state of a checkpoint's `train_state` into a run that has just begun, in place.

    Raises
    ------
    PretraceError
        If there is no training state, it is damaged, or it does not fit the recipe.
    """
    verify_manifest(checkpoint)
    folder = checkpoint / STATE
    if not (folder / "position.json").is_file():
        raise PretraceError("the checkpoint has weights but no training state", str(checkpoint),
                            "resume from a newer checkpoint, or start a new run from these weights")  # fmt: skip
    position = read_json(folder / "position.json")
    view = open_state(folder / "tensors.safetensors")
    try:
        load(training.state.model, _Under(view, _PARAM))
        for slot, moments in training.state.optimizer.tensors.items():
            for name, tensor in moments.items():
                _fill(tensor, view, f"{slot}.{name}")
    finally:
        view.close()
    state = training.state
    training.step = int(position["step"])
    state.optimizer.step = int(position["updates_applied"])
    state.updates_since_start = int(position["updates_since_start"])
    state.arrival = None if position["arrival"] is None else tuple(position["arrival"])
    state.loss_scale = LossScaleState(**position["loss_scale"])


class _Under:
    """The tensors of a view whose names start with a prefix, without it."""

    def __init__(self, view: StateView, prefix: str) -> None:
        self._view, self._prefix = view, prefix

    def names(self) -> tuple[str, ...]:
        return tuple(n.removeprefix(self._prefix) for n in self._view.names() if n.startswith(self._prefix))

    def info(self, name: str) -> Any:
        return self._view.info(self._prefix + name)

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._view.read(self._prefix + name, start, stop)


def _fill(tensor: torch.Tensor, view: StateView, name: str) -> None:
    info = view.info(name)
    if tuple(info.shape) != tuple(tensor.shape):
        raise PretraceError(f"{name} has shape {info.shape}, the run wants {tuple(tensor.shape)}", info.where,
                            "resume with the recipe that this state was made with")  # fmt: skip
    block = view.read(name, 0, tensor.numel())
    stored = torch.from_numpy(np.array(block))
    if info.dtype == "bfloat16":
        stored = stored.view(torch.bfloat16)
    with torch.no_grad():
        tensor.copy_(stored.view(tensor.shape))


def drop_old_states(run: RunFolder, spec: CheckpointSpec) -> None:
    """Removes the training state of all but the newest `keep_states` checkpoints; their weights stay."""
    with_state = [path for path in run.whole_checkpoints().values() if (path / STATE).is_dir()]
    for path in with_state[: -spec.keep_states]:
        forget(path, STATE)


def newest_with_state(run: RunFolder) -> Path | None:
    """The newest whole checkpoint that training can go on from."""
    found = None
    for path in run.whole_checkpoints().values():
        with suppress(OSError):
            if (path / STATE / "position.json").is_file():
                found = path
    return found
