"""A result in words: the sentence of the verdict first, then the evidence, then what to do next. No number is computed here."""

from __future__ import annotations

import math

from pretrace.digest import short
from pretrace.provenance import Duel, Judged
from pretrace.retrace.elsewhere import ElsewhereFound
from pretrace.retrace.result import AtStep, CaseResult
from pretrace.retrace.stages import Stage

MARKS = {"supported": "✓", "partly": "~", "contradicted": "✗", "undecided": "?"}


def sentence(result: CaseResult) -> str:
    """The verdict in one sentence."""
    reason = result.reason[:1].lower() + result.reason[1:]
    return f"{result.outcome.upper()}: {reason}."


def lines(result: CaseResult, report: str = "") -> list[str]:
    """What a terminal shows."""
    digest = short(result.recipe_digests[result.claim])
    shown = [
        f'Claim   "{result.claim}": the reference was made by this hypothesis (recipe {digest})',
        f"Verdict {MARKS[result.outcome]} {sentence(result)}   deciding step {result.deciding_step}, declared before reading "
        f"(case {short(result.case_digest)})",
        "",
    ]
    shown += [f"  {finding.severity:<8} {finding.code}: {finding.what}" for finding in result.findings]
    shown += [_stage(stage) for stage in result.stages if stage.name not in ("integrity", "replay")]
    if result.steps:
        shown += [""] if shown[-1] else []
        shown += [*_table(result), *map(_elsewhere, result.elsewhere), "", *_controls(result), ""]
    if result.topologies:
        shown += [f"  {result.topologies.answer}", ""]
    shown += [f"  not run: {check.check} ({check.why})" for check in result.checks_not_run]
    next_step = result.would_settle or "nothing needed"
    shown.append(f"  Next: {next_step}.{f' Report: {report}' if report else ''}")
    return shown


def _stage(stage: Stage) -> str:
    return f"  {stage.says}" if stage.says.startswith(stage.name) else f"  {stage.name}: {stage.says}"


def _table(result: CaseResult) -> list[str]:
    claim = result.hypotheses[0]
    wide = max(10, *(len(found.name) for found in result.hypotheses))
    head = f"  {'hypothesis':<{wide}}  {'status':<12} {'centred score':<15} {'share':<7} "
    rows = [head + f"exact p ({claim.n_decoys} decoys)   duel (1: this one)"]
    for found in sorted(result.hypotheses, key=lambda each: -each.centred):
        row = f"  {found.name:<{wide}}  {found.status:<12} {found.centred:<15.3f} {found.share:<7.2f} "
        rows.append(row + f"{found.p_exact:<19.2f}   {_duel(claim, found)}")
    return rows


def _duel(claim: Judged, found: Judged) -> str:
    if found is claim:
        return "; ".join(_fought(duel, duel.share, name) for name, duel in claim.duels.items()) or "-"
    duel = claim.duels[found.name]
    return _fought(duel, 1 - duel.share, claim.name)


def _fought(duel: Duel, share: float, other: str) -> str:
    return f"same predictions as {other}" if math.isnan(share) else f"{share:.2f} +- {duel.sd:.2f} against {other}"


def _elsewhere(found: ElsewhereFound) -> str:
    """A run that was trained elsewhere, at its last step: described, never counted."""
    if found.why_not or not found.steps:
        return f"  {found.name}  {found.mark}: {found.why_not or 'it has none of the declared steps'}"
    at = found.steps[-1]
    text = f"  {found.name}  {found.mark}, step {at.step}: U.Cos {at.u_cos:.3f}, P.Cos (shown as 1-x) {at.one_minus_p_cos:.1e}"
    if at.centred is not None:
        text += f", centred score {at.centred:.3f} (above {at.above_decoys} of the {at.n_decoys} decoys of {found.decoys_of})"
    return text


def _controls(result: CaseResult) -> list[str]:
    positives = [score for found in result.hypotheses for score in found.positive_scores]
    decoys = [score for found in result.hypotheses for score in found.decoy_scores]
    p_cos = ", ".join(f"{found.name} {found.one_minus_p_cos:.1e}" for found in result.hypotheses)
    shown = [
        f"  benign reruns {_span(positives)}   decoy orders {_span(decoys)}   power: {power(result)}",
        f"  P.Cos (shown as 1-x): {p_cos}   rivals not listed were not tested",
    ]
    if result.sibling:
        shown.insert(1, f"  sibling control: {result.sibling.status} (centred score {result.sibling.centred:.3f})")
    shown += [_difference(rival.rival, rival.first_step, rival.steps_compared) for rival in result.rivals]
    return shown


def _span(values: list[float]) -> str:
    return f"{min(values):.3f}..{max(values):.3f}"


def _difference(rival: str, first: int | None, compared: int) -> str:
    if first is None:
        return f"  {rival} shares every batch of the {compared} steps compared"
    if first == 1:
        return f"  {rival} reads other batches from the first step on"
    return f"  {rival} shares every batch up to step {first - 1}; it could be told apart from step {first} on"


def power(result: CaseResult) -> str:
    """What this budget could have seen."""
    seen = [(fraction, step) for fraction, step in result.visible_from.items() if step is not None]
    if not seen:
        return "no rival with 10% or less of its sequences replaced would be told apart"
    fraction, step = min(seen)
    return f"a rival with {100 * fraction:g}% of its sequences replaced would be told apart from step {step} on"


def at_deciding(result: CaseResult) -> AtStep | None:
    """The deciding step's entry; None where the case ended before."""
    return next((step for step in result.steps if step.deciding), None)
