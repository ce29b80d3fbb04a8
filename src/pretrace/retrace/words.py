"""A result in words: the sentence of the verdict first, then the evidence, then what to do next. No number is computed here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pretrace.digest import short
from pretrace.provenance import Judged
from pretrace.retrace.budget import Cost
from pretrace.retrace.losses import LossTest
from pretrace.retrace.result import AtStep, CaseResult
from pretrace.retrace.selftest import Rate, SelftestResult

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
    if result.steps:
        shown += [*_table(result), "", *_controls(result), ""]
    shown += [f"  not run: {check.check} ({check.why})" for check in result.checks_not_run]
    next_step = result.would_settle or "nothing needed"
    shown.append(f"  Next: {next_step}.{f' Report: {report}' if report else ''}")
    return shown


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
        return (
            "; ".join(f"{duel.share:.2f} +- {duel.sd:.2f} against {name}" for name, duel in claim.duels.items()) or "-"
        )
    duel = claim.duels[found.name]
    return (
        "same predictions" if math.isnan(duel.share) else f"{1 - duel.share:.2f} +- {duel.sd:.2f} against {claim.name}"
    )


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
        return "no replaced part of 10% or less would be visible"
    fraction, step = min(seen)
    return f"{100 * fraction:g}% replaced sequences visible from step {step}"


def at_deciding(result: CaseResult) -> AtStep | None:
    """The deciding step's entry; None where the case ended before."""
    return next((step for step in result.steps if step.deciding), None)


def selftest_lines(result: SelftestResult) -> list[str]:
    """What a terminal shows of a self-test."""
    shown = [
        f"{result.cases} fresh cases with known truth, seed {result.seed}, engine {short(result.rules_digest)}",
        "",
        f"  {'truth':<9} {'noise':<11} {'cases':>5}  {'supported':>9} {'partly':>7} {'contradicted':>13} {'undecided':>10}",
    ]
    shown += [
        f"  {cell.truth:<9} {cell.noise:<11} {cell.n:>5}  {cell.supported:>9} {cell.partly:>7} {cell.contradicted:>13} "
        f"{cell.undecided:>10}"
        for cell in result.table
    ]
    shown += ["", f"  false support of a false claim         {rate(result.false_support)}",
              f"  false contradiction of a true claim    {rate(result.false_contradiction)}"]  # fmt: skip
    shown += [f"  decided, {noise + ' noise':<29} {rate(decided)}" for noise, decided in result.decided.items()]
    shown.append(f"  partly true claims, wrongly decided    {rate(result.partly)}")
    if result.recovered:
        r = result.recovered
        shown.append(f"  share printed of partly true claims    mean {r.mean:.2f} where {r.true_mean:.2f} is true "
                     f"(from {r.low:.2f} to {r.high:.2f}; mean error {r.mean_error:+.2f})")  # fmt: skip
    return shown


def rate(found: Rate) -> str:
    """A rate with its exact 95% interval."""
    return f"{found.events} of {found.n} (95%: {100 * found.low:.1f}% to {100 * found.high:.1f}%)"


def loss_lines(tests: Sequence[LossTest]) -> list[str]:
    """What a terminal shows of a test that needs no training."""
    wide = max(10, *(len(test.hypothesis) for test in tests))
    head = f"  {'hypothesis':<{wide}}  {'sequences':>11}  {'statistic':>9}  {'z':>6}  p by document   p by sequence"
    shown = [f"{tests[0].what}: small p means that the model saw the sequences as claimed", "", head]
    for test in tests:
        n = f"{test.n_seen}" + (f" vs {test.n_later}" if test.n_later else "")
        by, alone = test.by_document, test.by_sequence
        shown.append(
            f"  {test.hypothesis:<{wide}}  {n:>11}  {by.statistic:>9.3f}  {by.z:>6.1f}  {by.p:<14.3f}  {alone.p:.3f}"
        )
    return shown


def cost_line(cost: Cost) -> str:
    """What a plan costs, in one line."""
    return (
        f"{cost.runs} runs of {cost.deciding_step} updates, {cost.decoys} decoys a hypothesis: {cost.tokens:.3g} tokens, "
        f"{cost.hours:.3g} device-hours, {cost.money:.3g} in money"
    )
