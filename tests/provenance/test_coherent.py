"""A verdict that the rest of the reference does not bear out is taken back; none is ever made here."""

import math

import numpy as np
import pytest

from pretrace.provenance import START, Runs, Verdict, coherent, gram_of, stride


def verdict(outcome, explained_by=""):
    return Verdict("a", outcome, "why", "", (), None, explained_by)


def outcome(at, verdicts, strides=None):
    return coherent(at, verdicts, strides or dict.fromkeys(verdicts, 1.0)).outcome


def test_a_step_that_another_hypothesis_explains_takes_the_verdict_back():
    steps = {8: verdict("supported", "a"), 16: verdict("contradicted", "b")}
    found = coherent(16, steps, {8: 1.0, 16: 1.0})
    assert (found.outcome, found.explained_by) == ("undecided", "")
    assert found.reason == "the steps of the reference disagree: 'a' explains step 8, 'b' explains step 16"
    assert "steps 8 and 16" in found.would_settle


def test_a_step_of_a_run_that_nothing_explains_after_one_that_the_claim_explains_is_no_contradiction():
    assert outcome(16, {8: verdict("supported", "a"), 16: verdict("contradicted")}) == "undecided"


def test_steps_that_agree_or_say_nothing_leave_the_verdict_as_it_is():
    early = {1: verdict("undecided"), 2: verdict("partly")}
    assert outcome(8, {**early, 4: verdict("contradicted", "b"), 8: verdict("contradicted", "b")}) == "contradicted"
    assert outcome(8, {**early, 4: verdict("contradicted"), 8: verdict("supported", "a")}) == "supported"


def test_a_step_after_the_deciding_one_is_not_looked_at():
    assert outcome(8, {8: verdict("supported", "a"), 16: verdict("contradicted", "b")}) == "supported"


@pytest.mark.parametrize("far", [88.0, 0.2, 0.0, math.inf])
def test_a_contradiction_by_the_sibling_alone_needs_a_reference_that_moved_as_far_as_the_replays(far):
    found = coherent(8, {8: verdict("contradicted")}, {1: 1.0, 8: far})
    assert found.outcome == "undecided"
    assert "start" in found.reason


def test_a_rival_that_fits_needs_no_such_licence_and_a_usual_length_takes_nothing_back():
    assert outcome(8, {8: verdict("contradicted", "b")}, {8: 88.0}) == "contradicted"
    assert outcome(8, {8: verdict("contradicted")}, {8: 2.5}) == "contradicted"
    assert outcome(8, {8: verdict("partly")}, {8: 88.0}) == "partly"


def moved(reference, first, second=None, start=1000.0):
    """Updates in the plane: the start far out along one axis, what was moved along the other."""
    names = (START, "reference", "a", "b")
    lengths = (reference, first, first if second is None else second)
    gram = gram_of(names, [np.array([[start, 0.0], *([0.0, length] for length in lengths)])])
    return stride(gram, "reference", (Runs(("a",), ()), Runs(("b",), ())), 2.0**-10)


def test_a_stride_is_how_many_times_as_far_the_reference_has_moved():
    # Rounding to float16 explains 1000 / 1024 = 0.98 of any difference in length.
    assert moved(8.0, 2.0) == pytest.approx((8 - 0.977) / 2, abs=1e-3)
    assert moved(2.0, 8.0) == pytest.approx((2 + 0.977) / 8, abs=1e-3)


def test_the_hypothesis_that_comes_nearest_counts():
    assert moved(8.0, 2.0, 8.0) == 1.0


def test_what_rounding_explains_is_no_stride():
    assert moved(0.5, 0.0) == 1.0
    assert moved(0.0, 0.5) == 1.0
    assert moved(5.0, 0.0) == math.inf
