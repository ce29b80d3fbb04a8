"""The step plan: everything that decides how one update is computed, as one frozen, hashed, printable value.

    topology    world_size x grad_accum_steps x micro_batch
    loss        denominator, what is counted, where it is divided, z-loss
    accumulate  accum_dtype
    reduction   reduce_dtype, collective, order, buckets, divisions
    finish      loss_scale, clip, optimizer, schedule
    kernels     what decides which equality may be claimed

Which samples a rank reads is the topology's and the data room's: `plan.topology.positions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import yaml
from pydantic import Field, PositiveInt, model_validator

from pretrace.dtypes import ComputeName
from pretrace.errors import PretraceError
from pretrace.files import parse_yaml
from pretrace.spec import Source, Spec, build, dotted
from pretrace.step.finish_spec import ClipSpec, KernelSpec
from pretrace.step.loss_scale import LossScaleSpec, NoScale
from pretrace.step.loss_spec import LossSpec
from pretrace.step.optim_spec import OptimizerSpec
from pretrace.step.orders import Exact, refuse_incomplete
from pretrace.step.reduction_spec import ReductionSpec
from pretrace.step.schedule import ScheduleSpec
from pretrace.topology import Topology

UNKNOWN = Source(kind="assumed")


class StepPlan(Spec):
    """How one update is computed. Every field moves a number, so none has a default."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"sources"})

    world_size: PositiveInt  # data-parallel ranks, real or virtual
    grad_accum_steps: PositiveInt  # forwards per rank before one update
    micro_batch: PositiveInt  # sequences in one forward on one rank
    accum_dtype: ComputeName  # gradient sum on a rank
    reduce_dtype: ComputeName  # gradients on the wire
    loss: LossSpec
    reduction: ReductionSpec
    loss_scale: LossScaleSpec
    clip: ClipSpec | None
    optimizer: OptimizerSpec
    schedule: ScheduleSpec
    kernels: KernelSpec
    sources: dict[str, Source] = Field(default_factory=dict)  # by dotted key; a key covers what lies below it

    @model_validator(mode="before")
    @classmethod
    def _check_stated_batch(cls, data: Any) -> Any:
        # A plan may state its global batch for the reader's sake: it is checked, not kept.
        if not isinstance(data, Mapping) or "global_batch" not in data:
            return data
        data = dict(data)
        stated = data.pop("global_batch")
        parts = [data.get(key) for key in ("world_size", "grad_accum_steps", "micro_batch")]
        if all(isinstance(part, int) for part in parts) and stated != parts[0] * parts[1] * parts[2]:
            raise PretraceError(
                f"global_batch is {stated}, but world_size {parts[0]} x grad_accum_steps {parts[1]} x "
                f"micro_batch {parts[2]} is {parts[0] * parts[1] * parts[2]}",
                "step.global_batch",
                "correct one of the four, or leave global_batch out",
            )
        return data

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> StepPlan:
        refuse_incomplete(self.reduction.order, self.world_size)
        if "float16" in (self.kernels.compute_dtype, self.kernels.param_dtype) and isinstance(self.loss_scale, NoScale):
            raise PretraceError(
                "float16 gradients without a loss scale vanish below 6e-8",
                "step.loss_scale",
                "declare a static or dynamic loss scale, or compute in bfloat16",
            )
        if self.clip is not None:
            self._refuse_clip(self.clip)
        if isinstance(self.reduction.order, Exact):
            self._refuse_inexact()
        for key in self.sources:
            if key and key.split(".")[0] not in type(self).model_fields:
                raise PretraceError(f"a source is given for {key!r}, which the plan has not", "step.sources",
                                    "name a key of the plan")  # fmt: skip
        return self

    def _refuse_clip(self, clip: ClipSpec) -> None:
        fits = {"global": ("tensors", "flat"), "shards": ("tensors",), "local": ("flat",)}[clip.scope]
        if clip.norm not in fits:
            raise PretraceError(f"clip scope {clip.scope} has no norm {clip.norm!r}", "step.clip.norm",
                                f"use {' or '.join(fits)}")  # fmt: skip

    def _refuse_inexact(self) -> None:
        where = "step.reduction"
        if self.reduction.scaling or self.reduction.scaling_first:
            raise PretraceError("an exact reduction sums integers and cannot divide in between", where + ".scaling",
                                "leave scaling and scaling_first empty: the loss carries the division")  # fmt: skip
        if self.clip is not None and self.clip.scope != "global":
            raise PretraceError(f"clip scope {self.clip.scope} depends on the ranks, an exact reduction must not",
                                "step.clip.scope", "use scope global")  # fmt: skip

    @property
    def topology(self) -> Topology:
        """The placement of one update."""
        return Topology(
            world_size=self.world_size, grad_accum_steps=self.grad_accum_steps, micro_batch=self.micro_batch
        )

    @property
    def global_batch(self) -> int:
        """Sequences per update."""
        return self.topology.global_batch

    def source(self, key: str) -> Source:
        """Where the value under a dotted key comes from: its own entry, or the nearest one above; else assumed."""
        while key:
            if key in self.sources:
                return self.sources[key]
            key = key.rpartition(".")[0]
        return self.sources.get("", UNKNOWN)

    def leaves(self) -> dict[str, Any]:
        """Every value by its dotted key, without sources."""
        return dict(dotted(self.model_dump(mode="json", exclude={"sources"})))

    def describe(self) -> str:
        """The plan for a person: one line a value, with where it comes from."""
        rows = [(key, _word(value), _origin(self.source(key))) for key, value in self.leaves().items()]
        wide = max(len(key) for key, _, _ in rows)
        head = (
            f"step plan {self.digest()[:6]}: {self.world_size} ranks x {self.grad_accum_steps} micro-steps x "
            f"{self.micro_batch} sequences = {self.global_batch} an update"
        )
        return "\n".join([head, *(f"  {key:<{wide}}  {value:<24} {origin}".rstrip() for key, value, origin in rows)])

    def with_(self, changes: Mapping[str, Any], source: Source | None = None) -> StepPlan:
        """The plan with values under dotted keys replaced; a replaced nested value is given whole.

        Raises
        ------
        PretraceError
            If a key does not exist or the new plan contradicts itself.
        """
        data = self.model_dump(mode="json")
        for key, value in changes.items():
            *above, last = key.split(".")
            place = data
            for part in above:
                place = place[part] if isinstance(place.get(part), dict) else _no_such_key(key)
            if last not in place:
                _no_such_key(key)
            place[last] = value
            if source is not None:
                data["sources"][key] = source.model_dump()
        return build(StepPlan, data, where="step")

    def to_yaml(self) -> str:
        """The plan as YAML, sources included; `from_yaml` gives it back."""
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))

    @staticmethod
    def from_yaml(text: str, *, where: str) -> StepPlan:
        """Reads a plan; what carries no source of its own is declared by the file `where`.

        Raises
        ------
        PretraceError
            If the text is no YAML mapping, or no plan; every wrong key is named.
        """
        data = parse_yaml(text, "the plan", where)
        if not isinstance(data, dict):
            raise PretraceError("the plan is no mapping of keys to values", where, "write `key: value` lines")
        sources = data.get("sources") or {"": {"kind": "declared", "where": where}}
        return build(StepPlan, {**data, "sources": sources}, where=where)


def _no_such_key(key: str) -> Any:
    raise PretraceError(f"the plan has no key {key!r}", "step", "see `plan.leaves()` for its keys")


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        text = ", ".join(_word(item) for item in value) or "none"
        return text if len(text) <= 80 else f"{text[:70]}... ({len(value)})"
    if isinstance(value, dict):
        return " ".join(f"{_word(v)}" for v in value.values()) or "none"
    return str(value)


def _origin(source: Source) -> str:
    return f"{source.kind}: {source.where}" if source.where else source.kind
