"""What a checkpoint holds, taken out of a run at one step: tensors, counters, recipe. Written by `save`, at leisure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import from_float32
from pretrace.recipe.read import to_yaml
from pretrace.recipe.spec import Recipe
from pretrace.train.update import Training

PARAM = "param."


@dataclass(frozen=True, slots=True)
class Capture:
    """The state after `step` updates. `tensors`: `param.NAME` and, for every slot of the optimizer, `SLOT.NAME`."""

    step: int
    recipe: Recipe
    tensors: Mapping[str, Tensor]
    position: Mapping[str, Any]  # counters, loss scale: plain values

    def weights(self, kind: str) -> StateView:
        """The parameters rounded to `kind`, as a view in canonical names."""
        parameters = {n.removeprefix(PARAM): t for n, t in self.tensors.items() if n.startswith(PARAM)}
        arrays = {n: from_float32(t.float().numpy(), kind) for n, t in parameters.items()}
        return ArraysView(arrays, dtypes=dict.fromkeys(arrays, kind))

    def state(self) -> StateView:
        """Every tensor in its own dtype."""
        arrays, kinds = {}, {}
        for name, tensor in self.tensors.items():
            arrays[name], kinds[name] = _array(tensor)
        return ArraysView(arrays, dtypes=kinds)


def capture(training: Training, *, copy: bool) -> Capture:
    """The state of a run between two updates, on the CPU.

    With an engine all processes call this, and each gets the whole.

    `copy` makes it independent of the run, so that it can be written while the run goes on; without it the tensors may be the
    run's own and must be written before the next update.
    """
    engine, state = training.engine, training.state
    parameters = dict(state.params) if engine is None else engine.full()
    moments = state.optimizer.tensors if engine is None else engine.full_moments()
    tensors: dict[str, Tensor] = {PARAM + name: p for name, p in parameters.items()}
    for slot, held in moments.items():
        tensors |= {f"{slot}.{name}": t for name, t in held.items()}
    on_cpu = {n: t.detach().to("cpu", copy=copy).contiguous() for n, t in tensors.items()}
    return Capture(training.step, training.recipe, on_cpu, position_of(training))


def capture_weights(training: Training) -> Capture:
    """As `capture`, with the parameters alone: of a run whose processes write the rest in shards."""
    assert training.engine is not None
    tensors = {PARAM + name: p.to("cpu") for name, p in training.engine.full().items()}
    return Capture(training.step, training.recipe, tensors, position_of(training))


def position_of(training: Training) -> dict[str, Any]:
    """Counters, loss scale and recipe of a run between two updates, as plain values."""
    state = training.state
    scale = state.loss_scale
    return {
        "version": 1,
        "step": training.step,
        "updates_applied": state.optimizer.step,
        "updates_since_start": state.updates_since_start,
        "schedule_offset": state.schedule_offset,
        "arrival": None if state.arrival is None else list(state.arrival),
        "loss_scale": {name: getattr(scale, name) for name in scale.__dataclass_fields__},
        "recipe": training.recipe.digest(),
        "recipe_yaml": to_yaml(training.recipe),
    }


def _array(tensor: Tensor) -> tuple[NDArray[Any], str]:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind == "bfloat16":
        return tensor.view(torch.uint16).numpy(), kind
    array: NDArray[Any] = np.asarray(tensor.numpy())
    return array, kind
