"""The case file: what is claimed, of which checkpoints, against which rivals, decided at which step. Locked before reading.

Everything that could bend a verdict is declared here beforehand, and its digest is printed before the reference is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import Discriminator, Field, PositiveInt, PrivateAttr, Tag, model_validator

from pretrace.digest import digest_of
from pretrace.files import at_home, parse_yaml, read_text
from pretrace.provenance import RULES, Rules
from pretrace.recipe import Recipe
from pretrace.recipe import load as load_recipe
from pretrace.retrace.orders import Orders, expand, expand_one
from pretrace.retrace.parts import (
    Decoys,
    DeltaLoss,
    Elsewhere,
    Hypothesis,
    Palimpsest,
    Reference,
    Sibling,
    SiblingDistance,
    Start,
    Topologies,
)
from pretrace.spec import Spec, build

__all__ = ["Case", "Decoys", "Hypothesis", "Reference", "Sibling", "Start", "load", "lock", "recipes_of", "to_yaml"]


def _kind(value: Any) -> str:
    trained = "runs" in value if isinstance(value, Mapping) else isinstance(value, Elsewhere)
    return "runs" if trained else "edits"


AnyHypothesis = Annotated[Annotated[Hypothesis, Tag("edits")] | Annotated[Elsewhere, Tag("runs")], Discriminator(_kind)]
# Blocks that a case may leave out; what is left out is no part of its digest.
_OPTIONAL = ("orders", "sibling_distance", "delta_loss", "palimpsest", "topologies")


class Case(Spec):
    """One claim, its rivals, its controls, and the step that decides."""

    not_hashed: ClassVar[frozenset[str]] = frozenset({"recipe", "fetch"})
    _folder: Path = PrivateAttr(default=Path())  # of the case file: its paths are relative to it
    _left_out: frozenset[str] = PrivateAttr(default=frozenset())  # candidates that another one stands for

    claim: str  # one of the hypotheses
    recipe: str  # how the reference is said to have been made, as far as all hypotheses agree
    reference: Reference
    hypotheses: dict[str, AnyHypothesis]
    base: str  # the benign setting that decoys run under too
    benign: dict[str, dict[str, Any]]  # recipe edits that must not matter
    decoys: Decoys
    sibling: Sibling | None
    no_sibling_because: str  # why there is none; empty where there is one
    start: Start
    steps: tuple[PositiveInt, ...]  # where runs are compared; all but the deciding one only describe
    deciding_step: PositiveInt
    orders: Orders | None = None  # more hypotheses: data sets x shuffles x seeds
    sibling_distance: SiblingDistance | None = None
    delta_loss: DeltaLoss | None = None
    palimpsest: Palimpsest | None = None
    topologies: Topologies | None = None
    fetch: dict[str, str] = Field(default_factory=dict)  # path of an input -> where it comes from, in words

    @property
    def named(self) -> dict[str, Hypothesis]:
        """The hypotheses that can be trained here, those of `orders` among them."""
        own = {name: given for name, given in self.hypotheses.items() if isinstance(given, Hypothesis)}
        made = {name: each.edits for name, each in (expand(self.orders) if self.orders else {}).items()}
        return own | {name: Hypothesis(edits=edits) for name, edits in made.items()}

    @property
    def replayed(self) -> dict[str, Hypothesis]:
        """Those that are trained here: all but the candidates that another one stands for."""
        return {name: given for name, given in self.named.items() if name not in self._left_out}

    def candidates_of(self, dataset: str) -> tuple[str, ...]:
        """The candidates of one data set of `orders`."""
        return tuple(expand_one(self.orders, dataset)) if self.orders else ()

    def without(self, names: frozenset[str]) -> Case:
        """This case without some candidates of `orders`."""
        rest = self.model_copy()
        rest._left_out = names
        return rest

    @property
    def elsewhere(self) -> dict[str, Elsewhere]:
        """The hypotheses that were trained elsewhere."""
        return {name: given for name, given in self.hypotheses.items() if isinstance(given, Elsewhere)}

    def decoy_edits(self, name: str, seed: int) -> dict[str, Any]:
        """The edits of one decoy of a hypothesis: another order of its own data."""
        candidate = expand(self.orders).get(name) if self.orders else None
        return {"data.order": {**candidate.decoys, "seed": seed}} if candidate else {self.decoys.seed_key: seed}

    def at(self, path: str) -> str:
        """A path of the case file as this process finds it."""
        return path if "://" in path else str(self._folder / at_home(path))

    @property
    def place(self) -> str:
        """The folder that the case's paths are relative to, in full: what an error names."""
        return str(self._folder.resolve())

    def located(self, reference: Reference) -> Reference:
        """A series of the case file as this process finds it."""
        return reference.model_copy(update={"checkpoints": self.at(reference.checkpoints)})

    def hashed(self) -> dict[str, Any]:
        """As every spec; a block that is left out is no part of it."""
        plain = super().hashed()
        return {key: value for key, value in plain.items() if not (key in _OPTIONAL and value is None)}

    @model_validator(mode="after")
    def _names_are_known(self) -> Case:
        names = self.replayed
        if self.orders and (both := set(expand(self.orders)) & set(self.hypotheses)):
            raise ValueError(f"the hypothesis {sorted(both)[0]!r} stands in hypotheses and in orders")
        if self.claim in self.elsewhere:
            raise ValueError(
                f"the claim {self.claim!r} was trained elsewhere: only what is replayed here can be claimed"
            )
        if self.claim not in names:
            raise ValueError(f"the claim {self.claim!r} is none of the hypotheses {', '.join(names)}")
        if self.sibling_distance and self.sibling_distance.made_by not in names:
            raise ValueError(f"made_by {self.sibling_distance.made_by!r} is none of the hypotheses {', '.join(names)}")
        if self.topologies and (unknown := [name for name in self.topologies.hypotheses if name not in names]):
            raise ValueError(f"the topologies name {unknown[0]!r}, none of the hypotheses {', '.join(names)}")
        for test in (self.delta_loss, self.palimpsest):
            if test and test.may_end and (1 + test.permutations) * test.alpha < len(names):
                raise ValueError(
                    f"{test.permutations} permutations cannot reach alpha {test.alpha:g} over {len(names)} hypotheses"
                )
        return self

    @model_validator(mode="after")
    def _complete(self) -> Case:
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
    case = build(Case, data, where=str(path))
    case._folder = path.parent
    return case


def to_yaml(case: Case) -> str:
    """The case as YAML; reading it gives an equal case."""
    return str(yaml.safe_dump(case.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110))


def recipes_of(case: Case) -> tuple[Recipe, Recipe | None]:
    """The recipe of the reference and that of the sibling; token files that they name beside the case are found there."""
    main = _found(case, load_recipe(case.at(case.recipe)))
    if case.sibling is None:
        return main, None
    beside = _found(case, load_recipe(case.at(case.sibling.recipe)))
    return main, beside.with_values(_here(case, case.sibling.edits), where="the case's sibling")


def _found(case: Case, recipe: Recipe) -> Recipe:
    """`pretrace train` takes a recipe's relative paths from where it was started; a case goes wherever its folder goes."""
    paths = [source.path for source in recipe.data.sources]
    found = [path if _tokens_at(path) and not _tokens_at(case.at(path)) else case.at(path) for path in paths]
    if found == paths:
        return recipe
    sources = [
        {**source.model_dump(mode="json"), "path": path}
        for source, path in zip(recipe.data.sources, found, strict=True)
    ]
    return recipe.with_values({"data.sources": sources})


def _tokens_at(path: str) -> bool:
    return "://" in path or any(Path(path + end).exists() for end in ("", ".bin"))


def lock(case: Case, recipes: tuple[Recipe, Recipe | None], rules: Rules = RULES) -> str:
    """The digest of all that decides the verdict beside the reference: case, recipes, rules."""
    main, sibling = recipes
    locked = {
        "case": case.hashed(), "recipe": main.digest(), "sibling": sibling.digest() if sibling else "", "rules": rules.digest(),
    }  # fmt: skip
    if trained := {name: load_recipe(case.at(found.recipe)).digest() for name, found in case.elsewhere.items()}:
        locked["elsewhere"] = trained
    return digest_of(locked)


def hypothesis_recipe(case: Case, recipe: Recipe, name: str, more: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a hypothesis, with further edits (a benign setting, a decoy's order)."""
    edits = {**case.named[name].edits, **(more or {})}
    return recipe.with_values(_here(case, edits), where=f"hypothesis {name}")


def _here(case: Case, edits: Mapping[str, Any]) -> dict[str, Any]:
    """Edits whose token files are named as this process finds them."""
    if not isinstance(sources := edits.get("data.sources"), list):
        return dict(edits)
    return {**edits, "data.sources": [_located(case, source) for source in sources]}


def _located(case: Case, source: Any) -> Any:
    known = isinstance(source, Mapping) and isinstance(source.get("path"), str)
    return {**source, "path": case.at(source["path"])} if known else source
