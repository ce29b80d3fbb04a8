"""The case file: what is claimed, of which checkpoints, against which rivals, decided at which step. Locked before reading.

Everything that could bend a verdict is declared here beforehand, and its digest is printed before the reference is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import NonNegativeInt, PositiveInt, model_validator

from pretrace.digest import digest_of
from pretrace.dtypes import FloatName
from pretrace.files import parse_yaml, read_text
from pretrace.provenance import RULES, Rules
from pretrace.recipe import Recipe
from pretrace.recipe import load as load_recipe
from pretrace.spec import Spec, build


class Reference(Spec):
    """Published checkpoints of one run."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"checkpoints"})

    checkpoints: str  # folder with one checkpoint a step; the digits at the end of a name are its step
    dtype: FloatName  # the dtype they were published in: predictions are rounded to it too


class Hypothesis(Spec):
    """How the reference may have been made: the recipe with some dotted keys set to other values."""

    edits: dict[str, Any]


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


class Start(Spec):
    """Where replays begin: at the published step `step`, 0 if possible.

    A later checkpoint has no optimizer state with it: the moments are burnt in on `burn_in` claimed batches before it, at frozen
    weights. Such a replay is independent evidence at any point of a run; its scores stay below 1.
    """

    step: NonNegativeInt
    burn_in: NonNegativeInt  # updates; 0 at step 0


class Case(Spec):
    """One claim, its rivals, its controls, and the step that decides."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"recipe"})

    claim: str  # one of the hypotheses
    recipe: str  # how the reference is said to have been made, as far as all hypotheses agree
    reference: Reference
    hypotheses: dict[str, Hypothesis]
    base: str  # the benign setting that decoys run under too
    benign: dict[str, dict[str, Any]]  # recipe edits that must not matter
    decoys: Decoys
    sibling: Sibling | None
    no_sibling_because: str  # why there is none; empty where there is one
    start: Start
    steps: tuple[PositiveInt, ...]  # where runs are compared; all but the deciding one only describe
    deciding_step: PositiveInt

    @model_validator(mode="after")
    def _complete(self) -> Case:
        if self.claim not in self.hypotheses:
            raise ValueError(f"the claim {self.claim!r} is none of the hypotheses {', '.join(self.hypotheses)}")
        if self.base not in self.benign:
            raise ValueError(f"the base setting {self.base!r} is none of the benign ones {', '.join(self.benign)}")
        if self.deciding_step not in self.steps:
            raise ValueError(f"the deciding step {self.deciding_step} is not among the steps {self.steps}")
        if min(self.steps) <= self.start.step:
            raise ValueError(f"step {min(self.steps)} is not after the start at step {self.start.step}")
        if bool(self.start.step) != bool(self.start.burn_in) or self.start.burn_in > self.start.step:
            raise ValueError("a start after step 0 needs burn_in updates that lie before it, a start at step 0 none")
        if len(self.benign) < RULES.min_positives:
            raise ValueError(f"{len(self.benign)} benign settings; at least {RULES.min_positives} are needed")
        if self.decoys.count < RULES.min_decoys:
            raise ValueError(
                f"{self.decoys.count} decoys cannot reach p <= {RULES.alpha}: at least {RULES.min_decoys} are needed"
            )
        if (self.sibling is None) != bool(self.no_sibling_because):
            raise ValueError("declare a sibling, or say in no_sibling_because why there is none")
        return self


def load(path: str | Path) -> Case:
    """The case of a YAML file; paths in it are relative to its folder.

    Raises
    ------
    PretraceError
        If the file cannot be read or understood, a key is unknown or missing, or the controls are too few.
    """
    path = Path(path)
    data = parse_yaml(read_text(path, "reading the case"), "the case", str(path))
    return _absolute(build(Case, data, where=str(path)), path.parent)


def _absolute(case: Case, folder: Path) -> Case:
    def reference(given: Reference) -> Reference:
        return given.model_copy(update={"checkpoints": str(folder / given.checkpoints)})

    sibling = case.sibling and case.sibling.model_copy(
        update={"recipe": str(folder / case.sibling.recipe), "reference": reference(case.sibling.reference)}
    )
    changed = {"recipe": str(folder / case.recipe), "reference": reference(case.reference), "sibling": sibling}
    return case.model_copy(update=changed)


def to_yaml(case: Case) -> str:
    """The case as YAML; reading it gives an equal case."""
    return str(yaml.safe_dump(case.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110))


def recipes_of(case: Case) -> tuple[Recipe, Recipe | None]:
    """The recipe of the reference and that of the sibling."""
    return load_recipe(case.recipe), load_recipe(case.sibling.recipe) if case.sibling else None


def lock(case: Case, recipes: tuple[Recipe, Recipe | None], rules: Rules = RULES) -> str:
    """The digest of all that decides the verdict beside the reference: case, recipes, rules."""
    main, sibling = recipes
    return digest_of({
        "case": case.hashed(), "recipe": main.digest(), "sibling": sibling.digest() if sibling else "", "rules": rules.digest(),
    })  # fmt: skip


def hypothesis_recipe(case: Case, recipe: Recipe, name: str, more: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a hypothesis, with further edits (a benign setting, a decoy's seed)."""
    return recipe.with_values({**case.hypotheses[name].edits, **(more or {})}, where=f"hypothesis {name}")
