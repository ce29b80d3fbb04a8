"""The parts of a case file: checkpoints, hypotheses, controls, and the stages that may be declared beside the replay."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrace.dtypes import FloatName
from pretrace.spec import Spec


class Reference(Spec):
    """Published checkpoints of one run."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"checkpoints"})

    checkpoints: str  # folder with one checkpoint a step; the digits at the end of a name are its step
    dtype: FloatName  # the dtype they were published in: predictions are rounded to it too


class Hypothesis(Spec):
    """How the reference may have been made: the recipe with some dotted keys set to other values."""

    edits: dict[str, Any]


class Elsewhere(Spec):
    """A hypothesis that was trained elsewhere: its checkpoints, and the recipe that is said to have made them.

    It is shown as evidence, marked "not replayed here". It has no benign reruns, so no verdict rests on it.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"runs", "recipe"})

    runs: str  # folder with one checkpoint a step, any format
    recipe: str


class Decoys(Spec):
    """Other orders of a hypothesis's data: its recipe with another seed under `seed_key`."""

    count: PositiveInt
    seed_key: str
    first_seed: NonNegativeInt


class Sibling(Spec):
    """A run of the same stack whose data nobody doubts."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"recipe"})

    recipe: str
    reference: Reference
    edits: dict[str, Any] = Field(default_factory=dict)  # of its recipe

    def hashed(self) -> dict[str, Any]:
        """As every spec; without edits there are none in it."""
        return {key: value for key, value in super().hashed().items() if key != "edits" or value}


class Start(Spec):
    """Where replays begin: at the published step `step`, 0 if possible.

    A later checkpoint has no optimizer state with it: the moments are burnt in on `burn_in` claimed batches before it, at frozen
    weights. Such a replay is independent evidence at any point of a run; its scores stay below 1.
    """

    step: NonNegativeInt
    burn_in: NonNegativeInt  # updates; 0 at step 0


class Pair(Spec):
    """Two runs of one size, of the two data sets, from the same initial values, whose labels nobody doubts."""

    a: Reference
    b: Reference


class SiblingDistance(Spec):
    """How far the reference is from its counterpart: the model of its size that was trained on the other data.

    `pairs` are such couples of other sizes. Where the reference is nearer to its counterpart than `collapse` times the nearest
    couple, the difference that the other data should have made is not there.
    """

    counterpart: Reference
    made_by: str  # the hypothesis that is not doubted of the counterpart
    pairs: dict[str, Pair]
    collapse: PositiveFloat
    may_end: bool  # whether a collapse ends the case


class Drawn(Spec):
    """How a test without training is drawn, and what it may do."""

    permutations: PositiveInt
    seed: NonNegativeInt
    alpha: Annotated[float, Field(gt=0, le=0.05)]  # of the exact p by document, over all hypotheses together (Holm)
    may_end: bool  # whether it may contradict the claim before anything is trained


class DeltaLoss(Drawn):
    """Windows (first, last]: did the loss fall more on what a hypothesis claims for them? Only the last one may end the case."""

    windows: tuple[tuple[NonNegativeInt, PositiveInt], ...]
    seen: PositiveInt  # sequences of a window that are read at most: its last ones
    later: PositiveInt  # sequences claimed for after the last checkpoint, to compare with

    @model_validator(mode="after")
    def _forward(self) -> DeltaLoss:
        if not self.windows or any(first >= last for first, last in self.windows):
            raise ValueError("a window goes from one step to a later one, and there is at least one")
        return self


class Palimpsest(Drawn):
    """Is the loss at `step` lower on what a hypothesis claims to have come later, less the loss of an outsider?"""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"outsider"})

    step: PositiveInt
    sequences: PositiveInt  # read at most, evenly spread over all up to the step
    outsider: (
        str | None
    )  # a checkpoint of the same model trained on none of the hypotheses; without one nothing may end

    @model_validator(mode="after")
    def _needs_an_outsider_to_end(self) -> Palimpsest:
        if self.may_end and self.outsider is None:
            raise ValueError("without an outsider the loss itself sets the ranks: may_end needs one")
        return self


class Dealt(Spec):
    """How an update's sequences are dealt to ranks, micro-steps and forwards."""

    world_size: PositiveInt
    grad_accum_steps: PositiveInt
    micro_batch: PositiveInt

    def edits(self) -> dict[str, Any]:
        """The edit of a recipe."""
        return {f"step.{key}": value for key, value in self.model_dump().items()}


class Topologies(Spec):
    """Does dealing the batch otherwise move the gap between data sets, or only the level?

    Every hypothesis named runs under every topology, all else as its recipe says. The last one is the published topology.
    """

    hypotheses: tuple[str, ...]
    dealt: tuple[Dealt, ...]

    @model_validator(mode="after")
    def _enough(self) -> Topologies:
        if len(self.hypotheses) < 2 or len(self.dealt) < 2:
            raise ValueError("a gap needs two hypotheses, and what moves it two topologies")
        return self
