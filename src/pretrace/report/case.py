"""The page of a case: the verdict, the strip plot that shows it, and everything it rests on. Computes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan

from pretrace.digest import short
from pretrace.report.case_figures import curves, localiser, shares, strip, strips
from pretrace.report.case_stages import (
    ecdf,
    elsewhere,
    evidence_files,
    loss_tests,
    power_curve,
    sibling_distances,
    stages,
    topologies,
)
from pretrace.report.page import Cell, Mark, Page, Section, Table, Text
from pretrace.retrace.result import CaseResult
from pretrace.retrace.words import power, sentence

_MARKS: dict[str, Mark] = {"supported": "good", "partly": "open", "contradicted": "bad", "undecided": "open"}


def page(result: CaseResult) -> Page:
    """The page of a case's report."""
    return Page(
        title=f'Claim "{result.claim}", case {short(result.case_digest)}',
        verdict=sentence(result),
        mark=_MARKS[result.outcome],
        lead=_lead(result),
        sections=tuple(s for s in _sections(result) if s is not None),
    )


def _lead(result: CaseResult) -> str:
    decided = (
        f"Deciding step {result.deciding_step}, alpha {result.alpha:g}, both declared before the reference was read."
    )
    runs = f"{result.n_runs} runs in {result.elapsed_s:.0f} s." if result.n_runs else ""
    return (
        f"{decided} {runs} Next: {result.would_settle or 'nothing needed'}. Rivals that are not listed were not tested."
    )


def _sections(result: CaseResult) -> Sequence[Section | None]:
    return (
        strip(result),
        _hypotheses(result),
        shares(result),
        strips(result),
        _duels(result),
        _findings(result),
        stages(result),
        elsewhere(result),
        sibling_distances(result),
        loss_tests(result),
        ecdf(result),
        *topologies(result),
        curves(result, "loss", "Loss", "nats a token", "loss"),
        curves(result, "logit_rms", "Logit rms", "root mean square of all logits", "logit-rms"),
        _settings(result),
        _rivals(result),
        power_curve(result) or (Text("Power", f"Before the verdict: {power(result)}.") if result.steps else None),
        localiser(result),
        _not_run(result),
        _digests(result),
        evidence_files(result),
        Text("Case", result.case_yaml, pre=True, folded=True),
        Text("Recipe of the claim", result.recipe_yaml, pre=True, folded=True),
        Text("Environment", json.dumps(result.environment, indent=2), pre=True, folded=True),
        Text("How to make this page again", f"pretrace retrace run case.yaml   # case {result.case_digest}", pre=True),
    )


def _hypotheses(result: CaseResult) -> Table | None:
    if not result.hypotheses:
        return None
    columns = ("hypothesis", "status", "centred score", "share", "exact p", "decoys", "1 - P.Cos", "U.Cos", "L2", "p_same",
               "p tail (extrapolated)")  # fmt: skip
    found = (*result.hypotheses, *([result.sibling] if result.sibling else []))
    names = [h.name for h in result.hypotheses] + (
        [f"sibling control: {result.sibling.name}"] if result.sibling else []
    )
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            h.status,
            h.centred,
            h.share,
            h.p_exact,
            h.n_decoys,
            h.one_minus_p_cos,
            h.u_cos,
            h.l2,
            h.p_same,
            h.p_tail,
        )
        for name, h in zip(names, found)
    ]
    note = (
        "Centred score: 1 reproduces the order-specific update, 0 is an unrelated order. Share: how much of it is reproduced. "
        "Exact p: rank among the decoy orders; it decides. P.Cos, U.Cos and L2 only describe."
    )
    return Table("Hypotheses at the deciding step", columns, rows, note, "hypotheses")


def _duels(result: CaseResult) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (at.step, rival, *(None if isnan(x) else x for x in (duel.share, duel.sd)), duel.p_claim, duel.p_rival)
        for at in result.steps
        for rival, duel in at.hypotheses[0].duels.items()
    ]
    note = (
        "Share 1: the reference lies at the claim; 0: at the rival. The scatter is that of the benign reruns of both."
    )
    columns = ("step", "rival", "share of the claim", "+-", "p for the claim", "p for the rival")
    return Table("Duels", columns, rows, note, "duels") if rows else None


def _findings(result: CaseResult) -> Table | None:
    rows: list[tuple[Cell, ...]] = [(f.severity, f.code, f.what, f.where, f.mend) for f in result.findings]
    return Table("Findings on the reference", ("severity", "code", "what", "where", "mend"), rows) if rows else None


def _settings(result: CaseResult) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (s.hypothesis, s.setting, s.one_minus_p_cos, s.u_cos, s.l2) for s in result.settings
    ]
    note = "Each benign rerun against the reference, uncentred. These distances describe, and decide nothing."
    columns = ("hypothesis", "setting", "1 - P.Cos", "U.Cos", "L2")
    return Table("Distances by setting", columns, rows, note, "settings") if rows else None


def _rivals(result: CaseResult) -> Table | None:
    rows: list[tuple[Cell, ...]] = [
        (r.rival, r.first_step if r.first_step is not None else "none", r.steps_compared, r.common_samples)
        for r in result.rivals
    ]
    columns = ("rival", "first step with other batches", "steps compared", "share of common samples")
    return Table("Where the rivals' data differ", columns, rows, name="rivals") if rows else None


def _not_run(result: CaseResult) -> Table | None:
    rows: list[tuple[Cell, ...]] = [(c.check, c.why) for c in result.checks_not_run]
    return Table("Checks that were not run", ("check", "why"), rows) if rows else None


def _digests(result: CaseResult) -> Table:
    rows: list[tuple[Cell, ...]] = [("case", result.case_digest), ("rules", result.rules_digest)]
    rows += [(f"recipe of {name}", digest) for name, digest in result.recipe_digests.items()]
    return Table("Digests (sha256)", ("what", "digest"), rows, name="digests")
