"""Starting from somebody else's checkpoint: with its optimizer's state, or with what is declared to stand in for it."""

from __future__ import annotations

import hashlib

import numpy as np

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.fill import blocks
from pretrace.checkpoint.names import canonical
from pretrace.checkpoint.optimizer_names import state_of, weights_of
from pretrace.checkpoint.optimizer_state import canonical_state
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec
from pretrace.model.state import fill
from pretrace.recipe.spec import BurntInMoments, StartSpec, StoredMoments
from pretrace.step.evaluate import Read
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import StepState


def open_start(spec: StartSpec, model: ModelSpec) -> StateView:
    """The start's tensors under canonical names, with `optimizer.*` where its moments are meant; closing it closes the files.

    Raises
    ------
    PretraceError
        If it cannot be read, holds other tensors than the recipe means, or lacks the moments that it declares.
    """
    stored = isinstance(spec.moments, StoredMoments)
    view = (canonical_state if stored else canonical)(open_state(spec.path), model)
    try:
        if (found := content_of(view)) != spec.content:
            raise PretraceError(f"the checkpoint has content {found}, the recipe means {spec.content}", spec.path,
                                "restore the checkpoint that the recipe names, or declare start.content anew")  # fmt: skip
        if isinstance(spec.moments, StoredMoments):
            _refuse_other_updates(spec, spec.moments, view)
    except PretraceError:
        view.close()
        raise
    return view


def _refuse_other_updates(spec: StartSpec, moments: StoredMoments, view: StateView) -> None:
    said = view.metadata().get("optimizer_step", moments.updates)
    if said != moments.updates:
        raise PretraceError(f"its moments have seen {said} updates, the recipe says {moments.updates}", spec.path,
                            f"declare start.moments.updates: {said}")  # fmt: skip
    if not state_of(view, "exp_avg").names():
        raise PretraceError("the checkpoint holds no moments", spec.path,
                            "declare start.moments zero or burn_in, or start from one that does")  # fmt: skip


def parameters_of(view: StateView) -> StateView:
    """What the parameters start from: the optimizer's float32 masters where they are all there, else the weights."""
    weights, masters = weights_of(view), state_of(view, "fp32")
    return masters if set(weights.names()) <= set(masters.names()) else weights


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


def set_moments(spec: StartSpec, plan: StepPlan, state: StepState, read: Read, view: StateView) -> None:
    """Gives the optimizer the moments that `spec` declares, and lets the learning rate go on from `spec.step`.

    Raises
    ------
    PretraceError
        If `view` lacks a moment of a parameter, or one has another shape.
    """
    if isinstance(spec.moments, BurntInMoments):
        still = plan.with_({"schedule": {"kind": "constant", "peak": 0.0, "warmup_steps": 0}})
        for step in range(spec.step - spec.moments.updates, spec.step):
            execute(still, state, read, step=step)
        # The burn-in is no part of the run: a resumed process would not know of it.
        state.updates_since_start = 0
    elif isinstance(spec.moments, StoredMoments):
        for slot, held in state.optimizer.tensors.items():
            fill(held, state_of(view, slot), slot)
        state.optimizer.step = spec.moments.updates
    state.schedule_offset = spec.step - state.optimizer.step
