"""pretrace's own training state: the folder `train_state` of a checkpoint, opened beside its weights or by itself.

`tensors.safetensors` (or `shards/`, torch's distributed format) holds `param.<name>`, the parameters in full precision, and one
slot of the optimizer after the other, `exp_avg.<name>` ..., under canonical names; `position.json` the counters and the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrace.checkpoint.links import whole
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.errors import PretraceError
from pretrace.files import parse_yaml, read_json

FOLDER, TENSORS, SHARDS, POSITION = "train_state", "tensors.safetensors", "shards", "position.json"
PARAM, MOMENTS = "param.", ("exp_avg.", "exp_avg_sq.")


def is_training_state(view: StateView) -> bool:
    """Whether the view is one of a `train_state`."""
    return any(name.startswith(PARAM) for name in view.names())


def state_path(view: StateView) -> Path | None:
    """The training state beside the weights of a view, or its own if it is one; None if there is none on this machine."""
    file = next(iter(view.files()), "")
    if "://" in file or not file:
        return None
    here = Path(file).parent
    if is_training_state(view):
        return here.parent if here.name == SHARDS else here
    beside = here / FOLDER
    return beside if (beside / POSITION).is_file() else None


def open_beside(view: StateView) -> StateView | None:
    """The training state beside a checkpoint's weights, opened."""
    from pretrace.checkpoint.detect import open_state

    path = None if is_training_state(view) else state_path(view)
    if path is None:
        return None
    shards = path / SHARDS
    return open_state(shards if shards.is_dir() else path / TENSORS)


def parameters_of(state: StateView) -> RewiredView:
    """The parameters under canonical names."""
    return renamed(state, {name.removeprefix(PARAM): name for name in state.names() if name.startswith(PARAM)})


def moments_in(state: StateView) -> RewiredView:
    """Adam's moments, as `exp_avg.<name>` and `exp_avg_sq.<name>`."""
    return renamed(state, {name: name for name in state.names() if name.startswith(MOMENTS)})


def renamed(view: StateView, named: Mapping[str, str]) -> RewiredView:
    """The tensors of a view under new names: new -> old."""
    made = {}
    for new, old in named.items():
        info = view.info(old)
        made[new] = Wired(TensorInfo(new, info.dtype, info.shape, info.where), (whole(old, info.shape),))
    return RewiredView(view, made)


def about(path: Path | None) -> dict[str, Any]:
    """`step`, `optimizer_step` and `adam` of a training state, as far as its position says them."""
    if path is None or not (path / POSITION).is_file():
        return {}
    position = read_json(path / POSITION)
    if not isinstance(position, dict):
        return {}
    keys = {"step": "step", "updates_applied": "optimizer_step"}
    made: dict[str, Any] = {ours: position[key] for key, ours in keys.items() if type(position.get(key)) is int}
    settings = _adam(position, str(path / POSITION))
    return made | ({} if settings is None else {"adam": settings})


def _adam(position: dict[str, Any], where: str) -> dict[str, Any] | None:
    """AdamW's settings of the next update, by the recipe in the position; None if it is another optimizer, or not told."""
    from pretrace.spec import build
    from pretrace.step.plan import StepPlan
    from pretrace.step.schedule import lr_at

    text = position.get("recipe_yaml")
    recipe = parse_yaml(text, POSITION, where) if isinstance(text, str) else None
    step = recipe.get("step") if isinstance(recipe, dict) else None
    try:
        plan = build(StepPlan, step, where=where)
    except PretraceError:
        return None  # a recipe of another release: its settings are declared anew
    if plan.optimizer.kind != "adamw":
        return None
    at = int(position.get("updates_applied", 0)) + int(position.get("schedule_offset", 0))
    decay = max((group.weight_decay for group in plan.optimizer.groups), default=0.0)
    return {
        "lr": lr_at(plan.schedule, at),
        "betas": plan.optimizer.betas,
        "eps": plan.optimizer.eps,
        "weight_decay": decay,
    }
