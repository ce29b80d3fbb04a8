"""Two step plans, one field at a time: which fields differ, what a plan becomes when one is swapped, and the ranking. No torch.

A field is the smallest part that can stand alone in the other plan: a leaf, or a whole part where the parts are of different
kinds (a schedule, an order, a clip that one plan does not have). World size, gas and micro-batch are one field, because alone
they would change the global batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pretrace.errors import PretraceError
from pretrace.step.plan import StepPlan

TOPOLOGY = ("world_size", "grad_accum_steps", "micro_batch")
# Parts that are told apart by their kind, or may be absent; `reduction.scaling` carries its first step with it.
_PARTS = ("reduction.order", "reduction.buckets", "loss_scale", "clip", "optimizer", "schedule")
# What a kernel of the optimizer implies: swapped together where the kernel alone would contradict the rest.
_OPTIMIZER_RULE = ("optimizer.kernel", "optimizer.eps_place", "optimizer.decay_place", "optimizer.bias_correction")


@dataclass(frozen=True, slots=True)
class Swap:
    """One field: its keys, and both plans' values in words."""

    field: str
    keys: tuple[str, ...]
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class SwapEffect:
    """What plan A does with this one field of plan B, against plan A as it is, on one state and one batch.

    gradient : |G - G_A| / |G_A| of the reduced, unscaled gradient before clipping; its cosine; its gain <G, G_A> / |G_A|^2.
    update : |U - U_A| / |U_A| of what the parameters move by; its cosine.
    """

    swap: Swap
    gradient: float
    gradient_cosine: float
    gain: float
    clip_coefficient: float
    skipped: bool
    head_leak: float | None  # |1'G| / |G| of the output head; None where there is no untied head
    lr: float
    loss: float
    update: float
    update_cosine: float
    fault: str = ""  # why the swap could not be made or computed; the numbers are then NaN


@dataclass(frozen=True, slots=True)
class Explanation:
    """Effects, largest update difference first; `whole` swaps everything at once."""

    step: int
    base: SwapEffect  # plan A itself: differences 0, its clip coefficient, leak, rate
    effects: tuple[SwapEffect, ...]
    whole: SwapEffect

    @property
    def first(self) -> SwapEffect | None:
        """The field that moves the update most; None if no field can be measured."""
        measured = [effect for effect in self.effects if not effect.fault]
        return measured[0] if measured else None

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        top = self.first
        if not self.effects:
            return "the two plans compute the same update: no field differs"
        if top is None:
            return "no field could be swapped alone: see the faults"
        if top.update == 0 and top.gradient == 0:
            return "no field moves a bit of this update"
        share = "" if not self.whole.update else f", all fields together by {_percent(self.whole.update)}"
        return f"{top.swap.field} moves this update most: by {_percent(top.update)}{share}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def differing(a: StepPlan, b: StepPlan) -> list[Swap]:
    """The fields in which two plans differ, in the plan's order."""
    left, right = a.model_dump(mode="json", exclude={"sources"}), b.model_dump(mode="json", exclude={"sources"})
    keys = list(dict.fromkeys(_fields(left, right)))
    found: list[Swap] = []
    if any(key in TOPOLOGY for key in keys):
        found.append(_swap("topology", TOPOLOGY, left, right))
    for key in keys:
        if key in TOPOLOGY or key == "reduction.scaling_first":
            continue
        together = ("reduction.scaling", "reduction.scaling_first") if key == "reduction.scaling" else (key,)
        found.append(_swap(key, together, left, right))
    if "reduction.scaling_first" in keys and "reduction.scaling" not in keys:
        found.append(_swap("reduction.scaling_first", ("reduction.scaling_first",), left, right))
    return found


def _fields(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for name in left:
        key = prefix + name
        x: Any = left[name]
        y: Any = right.get(name)
        if x == y:
            continue
        nested = isinstance(x, dict) and isinstance(y, dict)
        if nested and (key not in _PARTS or x.get("kind") == y.get("kind")):
            yield from _fields(x, y, key + ".")
        else:
            yield key


def _swap(field: str, keys: tuple[str, ...], left: Mapping[str, Any], right: Mapping[str, Any]) -> Swap:
    return Swap(field, keys, _words(keys, left), _words(keys, right))


def _words(keys: tuple[str, ...], data: Mapping[str, Any]) -> str:
    text = " x ".join(_word(_at(data, key)) for key in keys) if keys == TOPOLOGY else _word(_at(data, keys[0]))
    return text if len(text) <= 60 else text[:57] + "..."


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        kind = str(value.get("kind", ""))
        rest = " ".join(f"{k} {_word(v)}" for k, v in value.items() if k != "kind")
        return f"{kind} {rest}".strip()
    if isinstance(value, list):
        return ", ".join(_word(v) for v in value) or "none"
    return str(value)


def _at(data: Mapping[str, Any], key: str) -> Any:
    here: Any = data
    for part in key.split("."):
        here = here[part]
    return here


def swapped(a: StepPlan, b: StepPlan, swap: Swap) -> StepPlan:
    """Plan A with one field of plan B.

    Raises
    ------
    PretraceError
        If A cannot hold that value alone.
    """
    data = b.model_dump(mode="json", exclude={"sources"})
    changes = {key: _at(data, key) for key in swap.keys}
    try:
        return a.with_(changes)
    except PretraceError:
        if not swap.field.startswith("optimizer.") or swap.field not in _OPTIMIZER_RULE:
            raise
        return a.with_({key: _at(data, key) for key in _OPTIMIZER_RULE})


def rank(effects: Iterable[SwapEffect]) -> tuple[SwapEffect, ...]:
    """Largest update difference first; a skipped update counts as a difference of 1; what failed comes last."""

    def size(effect: SwapEffect) -> tuple[bool, float, float]:
        update = effect.update if math.isfinite(effect.update) else math.inf
        gradient = effect.gradient if math.isfinite(effect.gradient) else math.inf
        return bool(effect.fault), -update, -gradient

    return tuple(sorted(effects, key=size))
