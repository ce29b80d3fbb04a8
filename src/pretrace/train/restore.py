"""Puts a run back where one of its checkpoints left it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError
from pretrace.files import read_json, read_manifest, verify_manifest
from pretrace.model.state import load
from pretrace.step.loss_scale import LossScaleState
from pretrace.train.capture import PARAM
from pretrace.train.folder import STATE, RunFolder
from pretrace.train.shards import FOLDER as SHARDS
from pretrace.train.update import Training


def newest_sound(run: RunFolder, tell: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that training can go on from, every byte of it verified; None where there never was one.

    Damaged ones are passed over, and `tell` hears which, why, and from which step training goes on instead.

    Raises
    ------
    PretraceError
        If damaged ones are all there is.
    """
    damaged: list[tuple[Path, PretraceError]] = []
    for path in reversed(run.finished_checkpoints().values()):
        try:
            if f"{STATE}/position.json" not in read_manifest(path)[0]:
                continue  # its training state was dropped
            verify_manifest(path)
        except PretraceError as error:
            damaged.append((path, error))
            continue
        for passed, why in damaged:
            tell(f"{passed} is not whole ({why.what}): going on from {path.name}")
        return path
    if damaged:
        newest, why = damaged[0]
        raise PretraceError(f"{newest.name} is damaged and no other can be gone on from: {why.what}", why.where,
                            "restore the file, or start the run anew in another folder")  # fmt: skip
    return None


def restore(training: Training, checkpoint: Path) -> None:
    """Puts the state of a checkpoint's `train_state` into a run that has just begun, in place; `newest_sound` verified it.

    Raises
    ------
    PretraceError
        If there is no training state, or it does not fit the recipe.
    """
    position = read_position(checkpoint)
    shards = checkpoint / STATE / SHARDS
    with open_state(shards if shards.is_dir() else checkpoint / STATE / "tensors.safetensors") as view:
        load(training.state.model, _Under(view, PARAM))
        for slot, moments in training.state.optimizer.tensors.items():
            for name, tensor in moments.items():
                _fill(tensor, view, f"{slot}.{name}")
    state = training.state
    training.step = int(position["step"])
    state.optimizer.step = int(position["updates_applied"])
    state.updates_since_start = int(position["updates_since_start"])
    state.schedule_offset = int(position["schedule_offset"])
    state.arrival = None if position["arrival"] is None else tuple(position["arrival"])
    state.loss_scale = LossScaleState(**position["loss_scale"])


def read_position(checkpoint: Path) -> dict[str, Any]:
    """The counters of a checkpoint's training state.

    Raises
    ------
    PretraceError
        If it has none.
    """
    path = checkpoint / STATE / "position.json"
    if not path.is_file():
        raise PretraceError("the checkpoint has weights but no training state", str(checkpoint),
                            "resume from a newer checkpoint, or start a new run from these weights")  # fmt: skip
    return dict(read_json(path))


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
    stored = torch.from_numpy(np.array(view.read(name, 0, tensor.numel())))
    if info.dtype == "bfloat16":
        stored = stored.view(torch.bfloat16)
    with torch.no_grad():
        tensor.copy_(stored.view(tensor.shape))
