"""Which runs a case needs, as a value: every hypothesis under every benign setting, and its decoys under the base setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pretrace.errors import PretraceError
from pretrace.findings import Finding
from pretrace.provenance import Runs
from pretrace.recipe import Recipe
from pretrace.retrace.case import Case, hypothesis_recipe
from pretrace.retrace.parts import Hypothesis


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of the products by name (a recipe each), and which rows belong to which hypothesis."""

    rows: dict[str, Recipe]
    runs: dict[str, Runs]

    def base(self, hypothesis: str) -> str:
        """The row of a hypothesis under the base setting."""
        return self.runs[hypothesis].own[0]


def plan(case: Case, recipe: Recipe) -> Plan:
    """All runs of the hypotheses.

    Raises
    ------
    PretraceError
        If an edit names an unknown key, a benign setting changes what is trained, or a decoy is a hypothesis's own order.
    """
    rows: dict[str, Recipe] = {}
    runs = {name: _of(case, recipe, name, rows) for name in case.replayed}
    _refuse_live_decoys(rows, runs)
    return Plan(rows, runs)


def noise_floor(todo: Plan, claim: str) -> tuple[Finding, ...]:
    """A warning where all benign settings compute in one precision: how an update is dealt moves float32 by next to nothing."""
    kernels = [todo.rows[row].step.kernels for row in todo.runs[claim].own]
    if len({(each.param_dtype, each.compute_dtype) for each in kernels}) > 1:
        return ()
    name = kernels[0].compute_dtype
    text = f"all benign settings compute in {name}: their scatter is too low a floor, and any residual will be called unexplained"
    return (Finding("noise-floor", "warning", text, "benign", {"compute_dtype": name},
                    "add a setting of another precision that the reference may have had"),)  # fmt: skip


def sibling_plan(case: Case, recipe: Recipe) -> Plan:
    """All runs of the sibling control: its own recipe, and decoys of its own data."""
    alone = case.model_copy(
        update={"hypotheses": {"sibling": Hypothesis(edits={})}, "claim": "sibling", "orders": None}
    )
    return plan(alone, recipe)


def _of(case: Case, recipe: Recipe, name: str, rows: dict[str, Recipe]) -> Runs:
    settings = [case.base, *(setting for setting in case.benign if setting != case.base)]
    own, decoys = [], []
    for setting in settings:
        row = f"{name}/{setting}"
        rows[row] = hypothesis_recipe(case, recipe, name, case.benign[setting])
        same_batch(recipe, rows[row], f"benign.{setting}")
        _same_run(hypothesis_recipe(case, recipe, name), rows[row], f"benign.{setting}")
        own.append(row)
    for seed in range(case.decoys.first_seed, case.decoys.first_seed + case.decoys.count):
        row = f"{name}/decoy-{seed}"
        rows[row] = hypothesis_recipe(case, recipe, name, {**case.benign[case.base], **case.decoy_edits(name, seed)})
        decoys.append(row)
    _other_orders(rows[own[0]], [rows[row] for row in decoys], case.decoys.seed_key)
    return Runs(tuple(own), tuple(decoys))


def same_batch(recipe: Recipe, changed: Recipe, where: str) -> None:
    """Refuses a setting that changes how many sequences an update reads.

    Raises
    ------
    PretraceError
        If it does: the orders would part at the first update.
    """
    if changed.step.global_batch != recipe.step.global_batch:
        raise PretraceError(
            f"the setting changes the global batch from {recipe.step.global_batch} to {changed.step.global_batch} "
            "sequences: that is another run, not a benign one", where,
            "keep world_size x grad_accum_steps x micro_batch, or make it a rival",
        )  # fmt: skip


def _same_run(own: Recipe, changed: Recipe, where: str) -> None:
    """A benign setting says how an update is computed; what is learned from, and how fast, is a rival's to change."""
    parts = {
        "the data or their order": (own.data, changed.data),
        "the model": (own.model, changed.model),
        "the learning rate": (own.step.schedule, changed.step.schedule),
        "the optimizer": (own.step.optimizer, changed.step.optimizer),
    }
    for what, (before, after) in parts.items():
        if before != after:
            raise PretraceError(
                f"the setting changes {what}: its scatter would hide what the case asks", where,
                "make it a rival, or leave it out; benign are ranks, accumulation, precision, kernels, order of sums",
            )  # fmt: skip


def _other_orders(own: Recipe, decoys: Sequence[Recipe], seed_key: str) -> None:
    if all(decoy.data == own.data for decoy in decoys):
        raise PretraceError(
            f"the decoys read the very batches of their hypothesis: {seed_key!r} does not move the order", "decoys.seed_key",
            "name the seed of the order, such as data.order.seed",
        )  # fmt: skip


def _refuse_live_decoys(rows: Mapping[str, Recipe], runs: Mapping[str, Runs]) -> None:
    live = {rows[each.own[0]].digest(): name for name, each in runs.items()}
    for each in runs.values():
        for decoy in each.decoys:
            if name := live.get(rows[decoy].digest()):
                raise PretraceError(
                    f"the decoy {decoy} is the very order of the hypothesis {name!r}", "decoys.first_seed",
                    "choose a first_seed whose seeds no hypothesis uses",
                )  # fmt: skip
