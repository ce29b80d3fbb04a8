"""Starting from somebody else's checkpoint: weights are there, the optimizer's state is not, and what stands in is declared."""

from __future__ import annotations

import hashlib

import numpy as np

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.fill import blocks
from pretrace.checkpoint.names import canonical
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec
from pretrace.recipe.spec import BurntInMoments, StartSpec
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import StepState


def open_start(spec: StartSpec, model: ModelSpec) -> StateView:
    """The start's tensors under canonical names; closing it closes the files.

    Raises
    ------
    PretraceError
        If it cannot be read, or holds other tensors than the recipe means.
    """
    view = canonical(open_state(spec.path), model)
    found = content_of(view)
    if found != spec.content:
        view.close()
        raise PretraceError(f"the checkpoint has content {found[:12]}, the recipe means {spec.content[:12]}", spec.path,
                            "restore the checkpoint that the recipe names, or declare start.content anew")  # fmt: skip
    return view


def content_of(view: StateView) -> str:
    """sha256 over the tensors of a view in order of names: name, dtype, shape, bytes. The format does not matter."""
    whole = hashlib.sha256()
    for name in sorted(view.names()):
        info = view.info(name)
        whole.update(f"{name}:{info.dtype}:{tuple(info.shape)}\n".encode())
        if dtype(info.dtype).bits % 8:
            raise PretraceError(f"{name} is packed ({info.dtype})", info.where, "start from a float checkpoint")
        for block in blocks(view, name):
            whole.update(np.ascontiguousarray(block).view(np.uint8).data)
    return whole.hexdigest()


def set_moments(spec: StartSpec, plan: StepPlan, state: StepState, read: object) -> None:
    """Gives the optimizer the moments that `spec` declares, and lets the learning rate go on from `spec.step`."""
    burnt = 0
    if isinstance(spec.moments, BurntInMoments):
        burnt = spec.moments.updates
        still = plan.with_({"schedule": {"kind": "constant", "peak": 0.0, "warmup_steps": 0}})
        for step in range(spec.step - burnt, spec.step):
            execute(still, state, read, step=step)  # type: ignore[arg-type]
        # The burn-in is no part of the run: a resumed process would not know of it.
        state.updates_since_start = 0
    state.schedule_offset = spec.step - state.optimizer.step
