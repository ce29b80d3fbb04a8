"""What importers of live objects share: a plan is drafted value by value, each with its source.

An importer reads what an object of a known version holds, assumes what it cannot know, and lets the caller declare the rest:

    read      from the object, or implied by the code of a version that we looked at
    assumed   not visible from outside; a report shows it as such
    declared  given by the caller in `declared`, under dotted keys; replaces both

No torch in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pretrace.errors import PretraceError
from pretrace.spec import Source, build
from pretrace.step.optim_spec import ParamGroup, assign, decay_all, decay_matrices, spare_norms_and_biases
from pretrace.step.plan import StepPlan

GLOO_RING: dict[str, Any] = {"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}
MUL_BEFORE: dict[str, Any] = {"where": "before_cast", "op": "mul", "by": "world_size"}
DIV_BEFORE: dict[str, Any] = {**MUL_BEFORE, "op": "div"}
DIV_WIRE_PRE: dict[str, Any] = {"where": "wire_pre", "op": "div", "by": "world_size"}
DIV_WIRE_POST: dict[str, Any] = {"where": "wire_post", "op": "div", "by": "world_size"}
MUL_WIRE_POST: dict[str, Any] = {"where": "wire_post", "op": "mul", "by": "world_size"}
AVG_NCCL: dict[str, Any] = {"where": "wire_pre", "op": "mul_rounded", "by": "world_size"}
ROOT_SPLIT: list[dict[str, Any]] = [
    {"where": "wire_pre", "op": "div", "by": "root_low"},
    {"where": "wire_post", "op": "div", "by": "root_high"},
]
TORCH_CLIP: dict[str, Any] = {"norm": "tensors", "rule": "torch", "eps": 1e-6}


class Draft:
    """Values under dotted keys, each with its source; `plan` makes the whole."""

    def __init__(self, importer: str) -> None:
        self.importer = importer
        self._values: dict[str, Any] = {}
        self._sources: dict[str, Source] = {}

    def read(self, key: str, value: Any, where: str) -> None:
        """A value that the object, or the code of its version, holds at `where`."""
        self._set(key, value, Source(kind="read", where=where))

    def assume(self, key: str, value: Any, why: str) -> None:
        """A value that cannot be seen, and why this one stands here."""
        self._set(key, value, Source(kind="assumed", where=why))

    def mark_assumed(self, keys: tuple[str, ...], why: str) -> None:
        """Turns values that were read from code of another version into assumptions."""
        for key in keys:
            self._sources[key] = Source(kind="assumed", where=f"{why}; {self._sources[key].where}")

    def plan(self, declared: Mapping[str, Any]) -> StepPlan:
        """The plan, `declared` values last.

        Raises
        ------
        PretraceError
            If a declared key does not exist, or the values contradict each other.
        """
        data: dict[str, Any] = {}
        for key, value in self._values.items():
            _put(data, key, value)
        sources = dict(self._sources)
        for key, value in declared.items():
            _put(data, key, value)
            sources = {k: s for k, s in sources.items() if k != key and not k.startswith(key + ".")}
            sources[key] = Source(kind="declared", where=f"declared to {self.importer}")
        return build(
            StepPlan, {**data, "sources": {k: s.model_dump() for k, s in sources.items()}}, where=self.importer
        )

    def _set(self, key: str, value: Any, source: Source) -> None:
        self._values[key] = value
        self._sources[key] = source


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        inner = data.get(part)
        # A value given whole is copied before a part of it is replaced.
        data[part] = dict(inner) if isinstance(inner, dict) else {}
        data = data[part]
    data[last] = value


def plain_loss(draft: Draft, why: str) -> None:
    """The loss of a training loop that we cannot see: cross entropy's own mean, divided by the micro-steps."""
    draft.assume("loss", {
        "denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0,
        "z_loss_on": "counted",
    }, why)  # fmt: skip


def groups_of(members: list[tuple[list[str], float, float]], ndims: Mapping[str, int]) -> tuple[ParamGroup, ...]:
    """Optimizer groups (names, weight decay, lr scale) as patterns where a common rule gives the same, else name by name.

    Raises
    ------
    PretraceError
        If a parameter is in no group.
    """
    wanted = {name: (decay, scale) for names, decay, scale in members for name in names}
    missing = sorted(ndims.keys() - wanted.keys())
    if missing:
        raise PretraceError(f"{missing[0]} is in no group of the optimizer", "optimizer.param_groups", "add it")
    strongest = max(decay for _, decay, _ in members)
    for rule in (decay_all, decay_matrices, spare_norms_and_biases):
        groups = rule(strongest)
        placed = {name: groups[index] for name, index in assign(groups, ndims).items()}
        if all((group.weight_decay, group.lr_scale) == wanted[name] for name, group in placed.items()):
            return groups
    return tuple(
        ParamGroup(params=tuple(names), ndim="any", weight_decay=decay, lr_scale=scale)
        for names, decay, scale in members
        if names
    )


def one_rank(draft: Draft, where: str) -> None:
    """The reduction of a run with one rank: nothing is added, nothing is divided."""
    draft.read("reduction", {
        "collective": "all_reduce", "order": {"kind": "direct", "sum_dtype": "wire"}, "buckets": {"kind": "whole"},
        "scaling": [], "scaling_first": [],
    }, where)  # fmt: skip


def order_of_backend(draft: Draft, backend: str) -> bool:
    """Sets the order of additions from the backend's name; true if the backend is gloo."""
    if backend == "gloo":
        draft.read("reduction.order", GLOO_RING, "process group gloo: ring (verified by the probe)")
        return True
    why = f"process group {backend}: its order depends on topology, size and version; record it with `pretrace probe`"
    draft.assume("reduction.order", {"kind": "direct", "sum_dtype": "wire"}, why)
    return False
