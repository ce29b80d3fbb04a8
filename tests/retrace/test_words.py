"""What a person reads, on a result made by hand."""

import math
from dataclasses import replace

from pretrace.provenance import Duel, Judged, Power
from pretrace.retrace.result import AtStep, CaseResult, RivalDifference
from pretrace.retrace.words import lines, power, sentence


def judged(name, status, score, duels=None):
    return Judged(
        name=name, status=status, centred=score, share=score, p_exact=0.05, n_decoys=19, p_tail=1e-9, p_same=0.4,
        p_cos=1 - 3e-8, one_minus_p_cos=3e-8, u_cos=0.99, l2=0.1, threshold=0.2, decoy_scores=(-0.05, 0.06),
        positive_scores=(0.997, 0.999), duels=duels or {},
    )  # fmt: skip


CLAIM = judged("deduped", "absent", 0.02, {"standard": Duel("standard", -0.01, 0.02, 1.0, 1e-6)})
RIVAL = judged("standard", "reproduced", 0.998)
RESULT = CaseResult(
    outcome="contradicted", claim="deduped", deciding_step=16, alpha=0.05, hypotheses=(CLAIM, RIVAL),
    reason="the rival 'standard' explains it", would_settle="", explained_by="standard",
    sibling=judged("sibling", "reproduced", 0.999), steps=(AtStep(16, True, (CLAIM, RIVAL), None, Power(16, 0.01, 256)),),
    rivals=(RivalDifference("standard", 1, 16, 0.3),), visible_from={0.1: 4, 0.01: 12, 0.001: None}, settings=(),
    localiser={}, curves=(), findings=(), checks_not_run=(), case_digest="ab" * 32, rules_digest="cd" * 32,
    recipe_digests={"deduped": "7c1f2a" + "0" * 58, "standard": "ef" * 32}, n_runs=72, elapsed_s=1.0, environment={},
    case_yaml="", recipe_yaml="",
)  # fmt: skip


def test_the_answer_begins_with_the_claim_and_the_verdict():
    first, second, *_ = lines(RESULT)
    assert first.startswith('Claim   "deduped"')
    assert "recipe 7c1f2a" in first
    assert second.startswith("Verdict ✗ CONTRADICTED: the rival 'standard' explains it.")
    assert "deciding step 16, declared before reading" in second


def test_the_hypothesis_that_explains_it_stands_on_top():
    text = lines(RESULT)
    rows = [line.split() for line in text if line.startswith(("  standard  ", "  deduped  "))]
    assert rows[0][:4] == ["standard", "reproduced", "0.998", "1.00"]
    assert rows[1][:4] == ["deduped", "absent", "0.020", "0.02"]
    assert "1.01 +- 0.02 against deduped" in "\n".join(text)


def test_power_names_the_smallest_visible_part_and_its_step():
    assert power(RESULT) == "a rival with 1% of its sequences replaced would be told apart from step 12 on"
    assert "10%" in power(replace(RESULT, visible_from={0.1: None}))


def test_hypotheses_that_predict_the_same_have_no_duel_on_either_side():
    twin = judged("deduped", "reproduced", 0.998, {"standard": Duel("standard", math.nan, math.nan, 1.0, 1.0)})
    text = "\n".join(lines(replace(RESULT, hypotheses=(twin, RIVAL))))
    assert "same predictions as standard" in text
    assert "same predictions as deduped" in text
    assert "nan" not in text


def test_an_open_case_says_what_would_settle_it():
    open_case = replace(RESULT, outcome="undecided", reason="no power", would_settle="decide at a later step")
    assert sentence(open_case) == "UNDECIDED: no power."
    assert lines(open_case)[-1] == "  Next: decide at a later step."


def test_a_closed_case_needs_nothing_and_names_its_report():
    assert lines(RESULT, "out/report.html")[-1] == "  Next: nothing needed. Report: out/report.html"


def test_rivals_that_share_batches_are_named_with_the_step():
    shared = replace(RESULT, rivals=(RivalDifference("standard", 84, 100, 0.9),))
    assert "  standard shares every batch up to step 83; it could be told apart from step 84 on" in lines(shared)
