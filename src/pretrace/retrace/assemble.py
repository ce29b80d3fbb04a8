"""From evidence to the result of a case: verdict, power, and the rows that only describe."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pretrace.provenance.centred as centred
import pretrace.retrace.case as cases
from pretrace import __version__
from pretrace.dtypes import dtype
from pretrace.findings import CheckNotRun, Finding
from pretrace.provenance import RULES, Gram, Judged, Runs, Verdict, coherent, decide, judge_all, power_curve, stride
from pretrace.recipe import Recipe
from pretrace.recipe.read import to_yaml as recipe_to_yaml
from pretrace.retrace.case import Case
from pretrace.retrace.elsewhere import ElsewhereFound
from pretrace.retrace.evidence import REFERENCE
from pretrace.retrace.plan import Plan
from pretrace.retrace.result import AtStep, CaseResult, Curve, RivalDifference, Setting
from pretrace.retrace.runs import log_of
from pretrace.retrace.stages import Before, Ending, Stage
from pretrace.retrace.topologies import TopologyTable
from pretrace.runlog import Record


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a case before any run is made."""

    case: Case
    recipe: Recipe
    digest: str
    rivals: tuple[RivalDifference, ...]
    findings: tuple[Finding, ...]
    todo: Plan
    begun: float  # time.monotonic()
    out: Path  # where runs are kept
    before: Before = field(default_factory=Before)  # what the stages before the replay found


@dataclass(frozen=True, slots=True)
class Beside:
    """What is shown beside the verdict and decides nothing."""

    topologies: TopologyTable | None
    elsewhere: tuple[ElsewhereFound, ...]


def conclude(
    known: Known, grams: Mapping[int, Gram], by_tensor: Mapping[str, Gram], sibling: Mapping[int, Judged],
    made: Mapping[str, Path], log: tuple[Record, ...], beside: Beside,
) -> CaseResult:  # fmt: skip
    """The result of a case whose runs are made; `by_tensor` is of the deciding step."""
    case, runs, at = known.case, known.todo.runs, known.case.deciding_step
    burnt_in = bool(case.start.step)
    judged = {
        step: judge_all(gram, REFERENCE, case.claim, runs, RULES, approximate=burnt_in) for step, gram in grams.items()
    }
    parting = {r.rival: r.first_step for r in known.rivals}
    verdicts = {step: decide(case.claim, each, sibling.get(step), RULES, parting) for step, each in judged.items()}
    # Two to the minus mantissa bits: the relative distance of neighbours in the published dtype.
    spacing = 2.0 ** -dtype(case.reference.dtype).mantissa_bits
    strides = {step: stride(gram, REFERENCE, runs.values(), spacing) for step, gram in grams.items()}
    verdict = coherent(at, verdicts, strides)
    powers, visible = power_curve(grams, runs[case.claim], RULES, known.recipe.step.global_batch, case.start.step)
    steps = tuple(
        AtStep(
            power.step, power.step == at, _claim_first(case.claim, judged[power.step]), sibling.get(power.step), power
        )
        for power in powers
    )
    curves = [Curve("reference", log)] if log else []
    curves += [Curve(name, log_of(made[known.todo.base(name)])) for name in case.replayed]
    replayed = Stage("replay", f"{verdict.outcome}: {verdict.reason}", ended=True)
    return _result(
        known, verdict, steps=steps, visible_from=visible, settings=_settings(grams[at], runs),
        localiser=_localiser(by_tensor, runs), curves=tuple(curves), n_runs=len(set(made.values())), last=replayed,
        topologies=beside.topologies, elsewhere=beside.elsewhere,
        files={row: str(run.relative_to(known.out)) for row, run in made.items()},
    )  # fmt: skip


def unusable(known: Known) -> CaseResult:
    """The result of a case that ends at integrity."""
    worst = next(finding for finding in known.findings if finding.severity == "error")
    verdict = Verdict(known.case.claim, "undecided", f"the reference is unusable: {worst.what}", worst.mend, (), None)
    return _without_runs(known, verdict, Stage("integrity", worst.what, ended=True))


def ended(known: Known, ending: Ending) -> CaseResult:
    """The result of a case that a stage before the replay has ended."""
    verdict = Verdict(known.case.claim, "contradicted", ending.reason, "", (), None, ending.explained_by)
    return _without_runs(known, verdict, None)


def _without_runs(known: Known, verdict: Verdict, last: Stage | None) -> CaseResult:
    return _result(known, verdict, steps=(), visible_from={}, settings=(), localiser={}, curves=(), n_runs=0, last=last)


def _claim_first(claim: str, judged: Mapping[str, Judged]) -> tuple[Judged, ...]:
    return (judged[claim], *(found for name, found in judged.items() if name != claim))


def _settings(gram: Gram, runs: Mapping[str, Runs]) -> tuple[Setting, ...]:
    return tuple(_setting(gram, name, row) for name, each in runs.items() for row in each.own)


def _setting(gram: Gram, hypothesis: str, row: str) -> Setting:
    reference, update = gram.one(REFERENCE), gram.one(row)
    apart = centred.one_minus_p_cos(gram, reference, update)
    u_cos, l2 = gram.cosine(reference, update), gram.distance(reference, update)
    return Setting(hypothesis, row.partition("/")[2], 1 - apart, apart, u_cos, l2)


def _localiser(by_tensor: Mapping[str, Gram], runs: Mapping[str, Runs]) -> dict[str, dict[str, float]]:
    return {
        name: {
            tensor: centred.score(gram, gram.one(REFERENCE), gram.mean(each.own), gram.mean(each.decoys))
            for tensor, gram in by_tensor.items()
        }
        for name, each in runs.items()
    }


def _result(known: Known, verdict: Verdict, *, last: Stage | None, **rest: Any) -> CaseResult:
    case, before = known.case, known.before
    not_run = (
        before.not_run if case.sibling else (CheckNotRun("sibling control", case.no_sibling_because), *before.not_run)
    )
    sound = () if last and last.name == "integrity" else (Stage("integrity", "no fault in the series"),)
    return CaseResult(
        outcome=verdict.outcome, claim=case.claim, deciding_step=case.deciding_step, alpha=RULES.alpha,
        hypotheses=verdict.evidence, reason=verdict.reason, would_settle=verdict.would_settle,
        explained_by=verdict.explained_by, sibling=verdict.sibling, rivals=known.rivals, findings=known.findings,
        checks_not_run=not_run, case_digest=known.digest, rules_digest=RULES.digest(),
        recipe_digests={name: known.todo.rows[known.todo.base(name)].digest() for name in case.replayed},
        elapsed_s=time.monotonic() - known.begun, environment=environment(), case_yaml=cases.to_yaml(case),
        recipe_yaml=recipe_to_yaml(known.recipe), stages=(*sound, *before.stages, *([last] if last else [])),
        siblings=before.siblings, loss_tests=before.losses, **rest,
    )  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions and machine, for the report; imports nothing heavy."""
    versions = {name: _version(name) for name in ("torch", "numpy", "numba", "tokenizers")}
    return {
        "pretrace": __version__, "python": platform.python_version(), **versions, "machine": platform.machine(),
        "system": platform.system(),
    }  # fmt: skip


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
