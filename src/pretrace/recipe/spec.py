"""The recipe: everything that can move a number of a run, in one value.

Two runs with equal digests on one machine kind with equal threads have equal bits. Names, places and the sources of values
cannot move a number and are left out of the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrace.data.order import DataSpec
from pretrace.dtypes import FloatName
from pretrace.model.spec import ModelSpec
from pretrace.spec import Source, Spec, build, dotted, put
from pretrace.step.plan import StepPlan


class Seeds(Spec):
    """Seeds of what is drawn by the model; seeds of the data's order stand in `data`."""

    init: NonNegativeInt
    dropout: NonNegativeInt


class CheckpointSpec(Spec):
    """What is saved of a run, and when. Nothing here can move a number of the run."""

    at: tuple[NonNegativeInt, ...]  # after these updates; 0 is the initial state
    every: NonNegativeInt  # and after every so many; 0: no more
    dtype: FloatName  # of the published weights; the training state always keeps full precision
    keep_states: PositiveInt  # of how many newest checkpoints the training state is kept; weights are kept of all
    asynchronous: bool = False  # written by a thread of its own, from a copy, while training goes on
    when_full: Literal["stop", "go_on"] = "stop"  # a full disk ends the run, or costs this checkpoint only

    def due(self, step: int, last: int) -> bool:
        """Whether the state after `step` updates is saved in a run of `last` updates; the last one always is."""
        return step == last or step in self.at or bool(self.every and step and step % self.every == 0)


class EvaluationSpec(Spec):
    """The held-out loss on the way: watched, and where `target` says so, the end of the run."""

    every: PositiveInt  # updates between evaluations; the last update is evaluated too
    data: DataSpec  # the held-out text; its order's first samples are read
    n_samples: PositiveInt
    micro_batch: PositiveInt  # sequences of one forward
    target: PositiveFloat | None  # nats a token: at or below it the run ends; None: it never does

    def due(self, step: int, last: int) -> bool:
        """Whether the state after `step` updates is evaluated in a run of `last` updates."""
        return step == last or step % self.every == 0


class ZeroMoments(Spec):
    """The optimizer starts with empty moments, as on step 0."""

    kind: Literal["zero"]


class BurntInMoments(Spec):
    """Moments of `updates` gradients at the start's fixed parameters, of the batches that come before `step`.

    With learning rate 0 nothing else moves; what the missing optimizer state held is estimated where it was made.
    """

    kind: Literal["burn_in"]
    updates: PositiveInt


class StoredMoments(Spec):
    """The checkpoint's own moments, and its float32 masters where it has them beside weights of another dtype."""

    kind: Literal["stored"]
    updates: (
        PositiveInt  # that the moments have seen: bias correction counts from there; checked where the files say it
    )


class StartSpec(Spec):
    """A checkpoint of somebody else's to start from, with or without the state of their optimizer."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"path"})

    path: str  # any format that `open_state` reads
    content: str  # digest of its tensors (`pretrace.train.start.content_of`): what was read is what was meant
    step: NonNegativeInt  # updates that it has behind it: order and learning rate go on from there
    moments: Annotated[ZeroMoments | BurntInMoments | StoredMoments, Field(discriminator="kind")]


class Recipe(Spec):
    """What to train, on what, how, for how long."""

    # What cannot change a result: the name, what is saved when, and where the values come from.
    not_hashed: ClassVar[frozenset[str]] = frozenset({"name", "checkpoints", "sources"})

    name: str
    model: ModelSpec
    data: DataSpec
    step: StepPlan
    steps: PositiveInt  # updates of the whole run
    seeds: Seeds
    checkpoints: CheckpointSpec
    evaluation: EvaluationSpec | None = None  # None: nothing is held out
    start: StartSpec | None = None  # None: the recipe's own initial values
    sources: dict[str, Source] = Field(default_factory=dict)  # dotted key -> source; a key without one is `assumed`

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        if self.data.seq_len > self.model.max_seq_len and self.model.position == "learned":
            raise ValueError(
                f"data.seq_len {self.data.seq_len} is longer than model.max_seq_len {self.model.max_seq_len}"
            )
        if self.start is not None and not self._start_fits(self.start):
            raise ValueError(f"start.step {self.start.step} does not fit {self.steps} steps and its burn-in")
        return self

    def _start_fits(self, start: StartSpec) -> bool:
        before = start.moments.updates if isinstance(start.moments, BurntInMoments) else 0
        return before <= start.step <= self.steps

    def hashed(self) -> dict[str, Any]:
        """As every spec; an evaluation that cannot end the run is left out, and so is what is absent."""
        plain = super().hashed()
        if self.evaluation is None or self.evaluation.target is None:
            del plain["evaluation"]
        if self.start is None:
            del plain["start"]
        return plain

    def source_of(self, key: str) -> Source:
        """Where the value of a dotted key comes from; the source of a whole part covers its keys."""
        parts = key.split(".")
        for n in range(len(parts), 0, -1):
            if source := self.sources.get(".".join(parts[:n])):
                return source
        return Source(kind="assumed")

    def values(self) -> dict[str, Any]:
        """Every leaf by dotted key, sources left out."""
        return dict(dotted(self.model_dump(mode="json", exclude={"sources"})))

    def with_values(self, edits: Mapping[str, Any], *, where: str = "edit") -> Recipe:
        """This recipe with some dotted keys set to other values, each declared by `where`.

        Raises
        ------
        PretraceError
            If a key is unknown or a value impossible.
        """
        data = self.model_dump(mode="json", exclude={"sources"})
        for key, value in edits.items():
            put(data, key, value, where)
        sources = {k: s.model_dump() for k, s in self.sources.items()}
        sources |= {key: {"kind": "declared", "where": where} for key in edits}
        return build(Recipe, data | {"sources": sources}, where=where)
