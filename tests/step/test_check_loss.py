"""check-loss names the denominator of small trainers, right and wrong ones, and of the installed Hugging Face Trainer."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pretrace.errors import PretraceError
from pretrace.step import check_loss as rules
from pretrace.step.check_loss import DENOMINATORS, TOPOLOGIES, Measured, expected, name
from pretrace.step.check_loss_run import load, measure, micro_batches, sequences
from pretrace.topology import Topology

TRAINERS = Path(__file__).with_name("trainers.py")


def named(function):
    return name(measure(f"{TRAINERS}:{function}"))


def as_if(denominator, count="after_shift", factor="none", noise=0.0):
    draw = np.random.default_rng(0)
    found = {
        t: tuple(
            rules.coefficients(denominator, count, t) * rules._factor(factor, t) * (1 + noise * draw.standard_normal(4))
        )
        for t in TOPOLOGIES
    }
    return Measured(found, 0.0, 2.0 if denominator == "positions" else 1.0)


def test_lengths_1_and_100_have_the_weights_of_the_books():
    two = Topology(world_size=1, grad_accum_steps=2, micro_batch=1)
    weights = lambda d: rules._label_weights(d, "after_shift", two, np.array([1, 100]), 104)  # noqa: E731
    assert weights("global_tokens") == pytest.approx([1 / 101, 1 / 101], rel=1e-6)
    assert weights("micro_mean") == pytest.approx([1 / 2, 1 / 200], rel=1e-6)


def test_global_tokens_is_the_same_at_every_topology_of_as_many_labels():
    for topology in TOPOLOGIES:
        labels = 138 if topology.global_batch == 4 else 138 + 1 + 30 + 100 + 100
        assert expected("global_tokens", "after_shift", topology) == pytest.approx([1 / labels] * 4, rel=1e-6)


@pytest.mark.parametrize("count", ["after_shift", "before_shift"])
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_every_rule_is_named_from_its_own_weights_with_bf16_noise(denominator, count):
    naming = name(as_if(denominator, count, noise=0.004))
    assert (naming.outcome, naming.denominator, naming.factor) == ("named", denominator, "none")
    assert naming.count == (count if denominator not in ("positions", "sequence_mean") else "after_shift")


@settings(max_examples=30, deadline=None)
@given(denominator=st.sampled_from(DENOMINATORS), factor=st.sampled_from(rules._FACTORS[1:]))
def test_a_division_forgotten_or_made_twice_is_named_as_such(denominator, factor):
    naming = name(as_if(denominator, factor=factor))
    assert (naming.outcome, naming.factor) == ("wrong-factor", factor)
    assert ("too small" if factor.startswith("1/") else "too large") in naming.sentence


def test_two_ranks_of_four_micro_steps_hold_unequal_labels_and_every_sequence():
    wide = Topology(world_size=2, grad_accum_steps=4, micro_batch=1)
    labels = [[int((b.targets != -100).sum()) for b in micro_batches(wide, rank)] for rank in (0, 1)]
    assert labels == [[1, 7, 1, 100], [100, 30, 30, 100]]
    assert rules.places(wide).tolist() == [2, 3, 1, 2]
    # rank 0: 109 labels, rank 1: 260; the sequence of 100 is read once by rank 0, twice by rank 1
    assert expected("rank_step_tokens", "after_shift", wide) == pytest.approx(
        [1 / 218, (1 / 218 + 2 / 520) / 3, 1 / 218, 1 / 520], rel=1e-6)  # fmt: skip


def test_a_fault_that_shows_at_two_ranks_of_four_micro_steps_only_is_no_known_rule():
    found = dict(as_if("micro_mean").coefficients)
    wide = TOPOLOGIES[-1]
    found[wide] = tuple(a * b for a, b in zip(found[wide], (1, 0.5, 0, 1)))
    assert name(Measured(found, 0.0, 1.0)).outcome == "unknown"


def test_random_weights_are_no_rule():
    draw = np.random.default_rng(1)
    found = {t: tuple(draw.random(4)) for t in TOPOLOGIES}
    assert name(Measured(found, 0.0, 1.0)).outcome == "unknown"
    assert name(Measured(found, float("nan"), 1.0)).outcome == "unknown"


def test_the_mixes_hold_the_labels_they_claim():
    batch = sequences([0, 1], 104)
    assert (batch.targets != -100).sum(1).tolist() == [1, 100]
    assert (batch.labels != -100).sum(1).tolist() == [2, 101]
    assert batch.attention_mask.sum(1).tolist() == [2, 101]
    one, two = micro_batches(Topology(world_size=2, grad_accum_steps=2, micro_batch=1), rank=1)
    assert ((one.targets != -100).sum().item(), (two.targets != -100).sum().item()) == (100, 30)


@pytest.mark.distributed
@pytest.mark.parametrize(("function", "denominator", "count"), [
    ("mean_of_means", "micro_mean", "after_shift"),
    pytest.param("global_sum", "global_tokens", "after_shift", marks=pytest.mark.slow),
    pytest.param("rank_sum", "rank_step_tokens", "after_shift", marks=pytest.mark.slow),
    pytest.param("each_example_alike", "sequence_mean", "after_shift", marks=pytest.mark.slow),
    pytest.param("all_positions", "positions", "after_shift", marks=pytest.mark.slow),
    pytest.param("counts_before_the_shift", "global_tokens", "before_shift", marks=pytest.mark.slow),
])  # fmt: skip
def test_the_denominator_of_a_real_trainer_is_named(function, denominator, count):
    naming = named(function)
    assert (naming.outcome, naming.denominator, naming.count) == ("named", denominator, count)
    assert naming.worst < 1e-5  # fp32 against formulas


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(("function", "outcome", "words"), [
    ("forgot_gas", "wrong-factor", "gas times too large"),
    ("forgot_ranks", "wrong-factor", "ranks times too large"),
    ("divides_by_ranks_twice", "wrong-factor", "ranks times too small"),
    ("loses_micro_steps_on_ranks", "unknown", "none of the known rules fits"),
    ("late_sync", "unknown", "do not exchange their gradients"),
    ("drops_at_random", "unknown", "no sum over the sequences"),
])  # fmt: skip
def test_a_wrong_trainer_is_told_what_is_wrong(function, outcome, words):
    naming = named(function)
    assert naming.outcome == outcome
    assert words in naming.sentence


@pytest.mark.parametrize(("function", "words"), [
    ("falls_over", "no such luck"),
    pytest.param("returns_nothing", "without gradients", marks=pytest.mark.slow),
    pytest.param("nope", "cannot be loaded", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_step_that_cannot_be_measured_is_an_error_in_words(function, words):
    with pytest.raises(PretraceError, match=words):
        named(function)


def test_a_name_without_function_is_refused():
    with pytest.raises(PretraceError, match="names no function"):
        load("train")


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_trainer_divides_by_the_labels_of_all_ranks():
    from pretrace.cli.main import app

    result = CliRunner().invoke(app, ["check-loss", "--hf", "--json"])
    naming = json.loads(result.output)["naming"]
    assert (result.exit_code, naming["outcome"], naming["denominator"], naming["count"]) == (
        0, "named", "global_tokens", "after_shift",
    )  # fmt: skip


@pytest.mark.distributed
def test_the_verb_prints_the_sentence_first_and_leaves_1_for_a_wrong_factor():
    from pretrace.cli.main import app

    result = CliRunner().invoke(app, ["check-loss", f"{TRAINERS}:forgot_gas"])
    assert result.exit_code == 1
    assert result.output.startswith("micro_mean, but the gradient is gas times too large")
