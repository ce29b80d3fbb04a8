"""The whole training state in canonical names: weights, and `optimizer.{fp32,exp_avg,exp_avg_sq}.<parameter>` beside them.

Each format has names of its own for Adam's state: ZeRO's flat pieces (cut and merged by `neox_folder`), torch's numbered state
dicts (nanoGPT), distributed checkpoints, optax trees (MaxText), Paxml's variables, pretrace's own training state. What is found
is brought under the names of its parameters, and from there through the parameters' table (see `moments`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrace.checkpoint.config import Dims
from pretrace.checkpoint.moments import moments_of
from pretrace.checkpoint.names import best_table, canonical, is_canonical, is_state
from pretrace.checkpoint.neox_folder import NeoxView
from pretrace.checkpoint.optimizer_names import KINDS, parsed, state_of
from pretrace.checkpoint.own_state import (
    about,
    is_training_state,
    moments_in,
    open_beside,
    parameters_of,
    renamed,
    state_path,
)
from pretrace.checkpoint.rewired import RewiredView
from pretrace.checkpoint.table import Move
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_OPTAX = re.compile(r"opt_state\.(?:\d+\.)?(mu|nu)\.(.+)")
_OPTAX_COUNT = re.compile(r"opt_state\.(?:0\.)?count")
_PAXML = re.compile(r"(?:state\.)?opt_states_0\.(?:p#\d+#i-1|no_prefix)_\d+\.(m|v)\.(params\..+)")
_PAXML_COUNT = re.compile(r"(?:state\.)?opt_states_0\.no_prefix_0\.count")
_TORCH = re.compile(r"optimizer\.state\.(.+)\.(exp_avg|exp_avg_sq|master)")
_KIND = {"mu": "exp_avg", "nu": "exp_avg_sq", "m": "exp_avg", "v": "exp_avg_sq", "master": "fp32"}


@dataclass(frozen=True, slots=True)
class Held:
    """Optimizer state under the parameters' own names, and how many updates it has seen (None: not said)."""

    states: Mapping[str, StateView]  # kind -> view
    step: int | None


def canonical_state(view: StateView, model: ModelSpec | Dims | None = None) -> StateView:
    """As `names.canonical`, with the optimizer's state; metadata has `optimizer_step` where the files say it.

    State whose parameters the table does not know is left out, as weights are; so are masters of weights that are fp32.

    Raises
    ------
    PretraceError
        If no table fits the names, or a shape does not fit the layout.
    """
    if (own := _own(view, model)) is not None:
        return own
    weights = canonical(view, model)
    table = None if is_canonical(n for n in view.names() if not is_state(n)) else best_table(view)
    held = next((found for find in _FINDERS if (found := find(view)) is not None), None)
    if held is None:
        return weights
    parts: dict[str, StateView] = {"": weights}
    # Masters of weights in fp32 are those weights.
    exact = all(weights.info(name).dtype == "float32" for name in weights.names())
    for kind, state in held.states.items():
        if kind == "fp32" and exact:
            continue
        known = None if table is None else moments_of(table, kind)
        parts[f"optimizer.{kind}."] = canonical(state, model, table=known)
    about = {} if held.step is None else {"optimizer_step": held.step}
    return United(parts, {**weights.metadata(), **about})


def _own(view: StateView, model: ModelSpec | Dims | None) -> StateView | None:
    """A training state of pretrace: by itself, or beside weights; of rounded weights its parameters are the masters."""
    said = about(state_path(view))
    if is_training_state(view):
        return United({"": parameters_of(view), "optimizer.": moments_in(view)}, {**view.metadata(), **said})
    state = open_beside(view)
    if state is None:
        return None
    weights = canonical(view, model)
    parts: dict[str, StateView] = {"": weights, "optimizer.": moments_in(state)}
    if any(weights.info(name).dtype != "float32" for name in weights.names()):
        parts["optimizer.fp32."] = parameters_of(state)
    return United(parts, {**weights.metadata(), **said})


def _by_pattern(view: StateView, pattern: re.Pattern[str], rename: Callable[[re.Match[str]], tuple[str, str]]) -> Any:
    """kind -> view of the tensors whose names fit; `rename` gives kind and the parameter's name."""
    named: dict[str, dict[str, str]] = {}
    for name in view.names():
        if match := pattern.fullmatch(name):
            kind, parameter = rename(match)
            named.setdefault(kind, {})[parameter] = name
    return {kind: renamed(view, names) for kind, names in named.items()}


def _canonical_names(view: StateView) -> Held | None:
    """Ours already (Orbax folders that pretrace wrote, and a decoder of ours that DeepSpeed trained)."""
    found = [p for name in view.names() if (p := parsed(name)) is not None]
    if not found or not is_canonical(parameter for _, parameter in found):
        return None
    states = {kind: state_of(view, kind) for kind in KINDS if any(k == kind for k, _ in found)}
    step = _scalar(view, re.compile(r"optimizer\.step"))
    return Held(states, _told(view) if step is None and isinstance(view, NeoxView) else step)


def _zero(view: StateView) -> Held | None:
    """DeepSpeed's pieces, merged over tensor-parallel ranks."""
    states: dict[str, StateView]
    if isinstance(view, NeoxView):
        states = {kind: RewiredView(view, wired) for kind in KINDS if (wired := view.merged_state(kind))}
    else:
        states = {kind: state for kind in KINDS if (state := state_of(view, kind)).names()}
    return Held(states, _told(view)) if states else None


def _optax(view: StateView) -> Held | None:
    states = _by_pattern(view, _OPTAX, lambda m: (_KIND[m[1]], f"params.{m[2]}"))
    return Held(states, _scalar(view, _OPTAX_COUNT)) if states else None


def _paxml(view: StateView) -> Held | None:
    states = _by_pattern(view, _PAXML, lambda m: (_KIND[m[1]], f"mdl_vars.{m[2]}"))
    return Held(states, _scalar(view, _PAXML_COUNT)) if states else None


def _torch(view: StateView) -> Held | None:
    """torch's state dicts by name (distributed checkpoints) or by number (AdamW's own)."""
    states = _by_pattern(view, _TORCH, lambda m: (_KIND.get(m[2], m[2]), m[1]))
    if not states:
        return None
    numbered = next(iter(states.values())).names()[0].isdigit()
    step = _scalar(view, re.compile(r"optimizer\.state\.[^.]*\.step" if numbered else r"optimizer\.state\..+\.step"))
    if not numbered:
        saved = view.metadata().get("saved", {})
        said = [v for k, v in saved.items() if re.fullmatch(r"optimizer\.state\..+\.step", k) and type(v) is int]
        return Held(states, said[0] if step is None and said else step)
    order = _order(view, states["exp_avg"])
    if order is None:
        return None
    numbers = {name: str(k) for k, name in enumerate(order)}
    return Held({kind: renamed(state, numbers) for kind, state in states.items()}, step)


def _order(view: StateView, state: StateView) -> tuple[str, ...] | None:
    """The parameters by their numbers: nanoGPT's (those of two or more axes first), or as they stand; told by the shapes."""
    later = {name for group in view.metadata().get("tied", ()) for name in sorted(group, key=view.names().index)[1:]}
    table = best_table(view)
    names = [n for n in view.names() if not is_state(n) and n not in later and _is_parameter(table, n)]
    tall = [n for n in names if len(view.info(n).shape) >= 2]
    for order in (tuple(tall + [n for n in names if n not in set(tall)]), tuple(names)):
        shapes = {str(k): view.info(name).shape for k, name in enumerate(order)}
        if shapes == {number: state.info(number).shape for number in state.names()}:
            return order
    return None


def _is_parameter(table: Any, name: str) -> bool:
    match = None if table is None else table.match(name)
    return table is None or (match is not None and isinstance(match[0], Move))


def _scalar(view: StateView, pattern: re.Pattern[str]) -> int | None:
    """The number in the first tensor of one element whose name fits."""
    name = next((n for n in view.names() if pattern.fullmatch(n) and view.info(n).numel == 1), None)
    return None if name is None else int(view.read(name, 0, 1)[0])


def _told(view: StateView) -> int | None:
    told = view.metadata().get("optimizer_step", view.metadata().get("step"))
    return told if type(told) is int else None


_FINDERS: tuple[Callable[[StateView], Held | None], ...] = (_canonical_names, _torch, _optax, _paxml, _zero)
