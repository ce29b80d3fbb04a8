"""The page of a case, on a result made by hand."""

from dataclasses import replace

from pretrace.provenance import Duel, Judged, Power
from pretrace.report.case import page
from pretrace.report.page import Figure, Table, render
from pretrace.retrace.result import AtStep, CaseResult, Curve, RivalDifference, Setting
from pretrace.runlog import Record


def judged(name, status, score, **duels):
    return Judged(
        name=name, status=status, centred=score, share=score, p_exact=0.05, n_decoys=19, p_tail=1e-9, p_same=0.4,
        p_cos=1 - 3e-8, one_minus_p_cos=3e-8,
        u_cos=0.99, l2=0.1, threshold=0.2, decoy_scores=(-0.05, 0.06), positive_scores=(0.997, 0.999),
        duels=duels,
    )  # fmt: skip


CLAIM = judged("deduped", "absent", 0.02, standard=Duel("standard", -0.01, 0.02, 1.0, 1e-6))
RIVAL = judged("standard", "reproduced", 0.998)
SIBLING = judged("sibling", "reproduced", 0.999)
RECORDS = tuple(
    Record(step=s, loss=7.0 - 0.1 * s, lr=1e-3, n_tokens=64, n_counted=64, logit_rms=0.5) for s in range(1, 5)
)
RESULT = CaseResult(
    outcome="contradicted", claim="deduped", deciding_step=16, alpha=0.05, hypotheses=(CLAIM, RIVAL),
    reason="the rival 'standard' explains it", would_settle="", explained_by="standard", sibling=SIBLING,
    steps=(
        AtStep(8, False, (CLAIM, RIVAL), SIBLING, Power(8, 0.1, 128)),
        AtStep(16, True, (CLAIM, RIVAL), SIBLING, Power(16, 0.01, 256)),
    ),
    rivals=(RivalDifference("standard", 1, 16, 0.3),), visible_from={0.1: 4, 0.01: 12, 0.001: None},
    settings=(Setting("standard", "gas8", 1 - 3e-8, 3e-8, 0.99, 0.1),), localiser={"deduped": {"embed.weight": 0.1}},
    curves=(Curve("reference", RECORDS), Curve("standard", RECORDS)), findings=(), checks_not_run=(),
    case_digest="ab" * 32, rules_digest="cd" * 32, recipe_digests={"deduped": "7c" * 32, "standard": "ef" * 32},
    n_runs=72, elapsed_s=1.0, environment={"torch": "2.13.0"}, case_yaml="claim: deduped", recipe_yaml="name: books",
)  # fmt: skip


def sections(kind):
    return {s.title: s for s in page(RESULT).sections if isinstance(s, kind)}


def test_the_page_begins_with_the_verdict_and_a_picture_of_it():
    made = page(RESULT)
    assert made.verdict == "CONTRADICTED: the rival 'standard' explains it."
    assert made.mark == "bad"
    assert isinstance(made.sections[0], Figure)


def test_the_strip_plot_carries_every_number_it_shows():
    rows = sections(Figure)["Where the reference lies"].rows
    assert ("deduped", "reference", 0.02) in rows
    assert ("standard", "benign rerun", 0.997) in rows
    assert ("sibling", "decoy", -0.05) in rows


def test_the_table_holds_every_hypothesis_and_the_sibling():
    rows = sections(Table)["Hypotheses at the deciding step"].rows
    assert [row[0] for row in rows] == ["deduped", "standard", "sibling control: sibling"]


def test_all_pictures_of_the_issue_are_there():
    assert {"Share over steps", "Strip plot by step", "Loss", "Logit rms", "Where it fits, by tensor"} <= set(
        sections(Figure)
    )


def test_a_case_that_ended_at_integrity_still_has_a_page():
    short = replace(
        RESULT, outcome="undecided", hypotheses=(), steps=(), rivals=(), settings=(), localiser={}, curves=()
    )
    html = render(page(replace(short, visible_from={}, sibling=None)))
    assert "UNDECIDED" in html
    assert "<figure>" not in html


def test_a_rendering_is_the_same_every_time():
    assert render(page(RESULT)) == render(page(RESULT))
