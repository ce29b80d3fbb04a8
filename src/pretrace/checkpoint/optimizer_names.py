"""Names of optimizer state beside canonical weights: `optimizer.<kind>.<canonical name of the parameter>`.

Kinds: `fp32` (the master copy), `exp_avg` and `exp_avg_sq` (Adam's moments, of the gradient of the canonical parameter). How
many updates they have seen stands in the view's metadata as `optimizer_step`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pretrace.checkpoint.links import whole
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.view import StateView

KINDS = ("fp32", "exp_avg", "exp_avg_sq")
PREFIX = "optimizer."


def state_name(kind: str, parameter: str) -> str:
    """The name of one kind of state of a parameter.

    >>> state_name("exp_avg", "embed.weight")
    'optimizer.exp_avg.embed.weight'
    """
    return f"{PREFIX}{kind}.{parameter}"


def parsed(name: str) -> tuple[str, str] | None:
    """(kind, parameter) of the name of optimizer state; None for other names.

    >>> parsed("optimizer.fp32.blocks.0.norm1.weight"), parsed("embed.weight")
    (('fp32', 'blocks.0.norm1.weight'), None)
    """
    kind, _, parameter = name.removeprefix(PREFIX).partition(".")
    return (kind, parameter) if name.startswith(PREFIX) and kind in KINDS and parameter else None


def weights_of(view: StateView) -> StateView:
    """The view without optimizer state."""
    return chosen(view, (name for name in view.names() if not name.startswith(PREFIX)))


def state_of(view: StateView, kind: str) -> StateView:
    """One kind of state, under the names of the parameters."""
    found = {p[1]: name for name in view.names() if (p := parsed(name)) is not None and p[0] == kind}
    made = {}
    for parameter, name in found.items():
        info = view.info(name)
        made[parameter] = Wired(type(info)(parameter, info.dtype, info.shape, info.where), (whole(name, info.shape),))
    return RewiredView(view, made)


def state_names(view: StateView) -> tuple[str, ...]:
    """The names of optimizer state in a view."""
    return tuple(name for name in view.names() if name.startswith(PREFIX))


def chosen(view: StateView, names: Iterable[str]) -> StateView:
    """The view with these names only; itself if they are all."""
    kept = tuple(names)
    if kept == view.names():
        return view
    return RewiredView(view, {name: Wired(view.info(name), (whole(name, view.info(name).shape),)) for name in kept})
