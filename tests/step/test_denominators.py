import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.batch import Batch
from pretrace.step.denominators import Counts, counts_of, losses_under_all, sequence_counts, weigh
from pretrace.step.loss_spec import DENOMINATORS, LossSpec

PLAIN = {"count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0, "z_loss_on": "counted"}


def spec(denominator, **changes):
    return LossSpec(denominator=denominator, **{**PLAIN, **changes})


def counts(*shape_and_n):
    n = np.array(shape_and_n, dtype=np.int64)
    return Counts(n, n, 2 * int(n.sum()))


# Two sequences of 1 and 100 tokens, one a micro-batch, dealt in three ways: [R, K, B].
DEALT = {"gas 2": [[[1], [100]]], "two ranks": [[[1]], [[100]]], "one micro-batch": [[[1, 100]]]}


@pytest.mark.parametrize("dealt", DEALT.values(), ids=DEALT)
def test_every_token_weighs_1_over_101_under_global_tokens_however_it_is_dealt(dealt):
    found = counts(*dealt)
    token = weigh(spec("global_tokens"), found, mean=True).token
    assert np.allclose(token / found.labels.shape[0], 1 / 101, rtol=1e-7)


@pytest.mark.parametrize("dealt", [DEALT["gas 2"], DEALT["two ranks"]])
def test_micro_mean_gives_the_historic_weights_of_a_half_and_a_two_hundredth(dealt):
    found = counts(*dealt)
    token = weigh(spec("micro_mean"), found, mean=True).token / found.labels.shape[0]
    assert np.allclose(token.ravel(), [1 / 2, 1 / 200], rtol=1e-7)


def test_sequence_mean_weighs_every_example_the_same_even_within_a_micro_batch():
    assert np.allclose(weigh(spec("sequence_mean"), counts([[1, 100]]), mean=True).token.ravel(), [1 / 2, 1 / 200])


def test_rank_step_tokens_divides_by_the_tokens_of_the_rank():
    token = weigh(spec("rank_step_tokens"), counts([[1], [100]], [[3], [4]]), mean=True).token
    assert np.allclose(token.ravel(), [1 / 101, 1 / 101, 1 / 7, 1 / 7])


def test_counting_before_the_shift_adds_one_for_each_sequence_whose_first_label_is_counted():
    labels = np.array([[5, 6, -100], [-100, 7, 8]])
    table = sequence_counts(Batch(labels, labels))[None, None]
    assert counts_of(spec("global_tokens"), table, 6).counted.tolist() == [[[2, 2]]]
    assert counts_of(spec("global_tokens", count="before_shift"), table, 6).counted.tolist() == [[[3, 2]]]


@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_a_batch_of_ignored_labels_weighs_nothing_and_is_no_error(denominator):
    for divide in ("loss", "gradient"):
        found = weigh(spec(denominator, divide=divide), counts([[0, 0]], [[0, 0]]), mean=True)
        assert np.isfinite(found.token).all()
        assert found.final_divisor > 0
        assert (found.rank_divisor > 0).all()


tables = st.integers(1, 4).flatmap(
    lambda r: st.integers(1, 3).flatmap(
        lambda k: st.lists(st.integers(1, 50), min_size=2 * r * k, max_size=2 * r * k).map(
            lambda n: np.array(n).reshape(r, k, 2)
        )
    )
)


@given(n=tables, mean=st.booleans(), divide=st.sampled_from(["loss", "gradient"]), which=st.sampled_from(DENOMINATORS))
def test_a_loss_of_one_nat_a_token_has_mean_one_wherever_it_is_divided(n, mean, divide, which):
    found = weigh(spec(which, divide=divide), Counts(n, n, int(n.sum())), mean=mean)
    per_rank = (found.token * n).sum(axis=(1, 2)) / found.rank_divisor
    total = (per_rank.mean() if mean else per_rank.sum()) / found.final_divisor
    assert total == pytest.approx(1, rel=1e-5)  # weights are float32: 24 bits, at most 24 of them are added


@given(n=tables)
def test_losses_under_all_denominators_of_equal_tokens_are_equal(n):
    losses = losses_under_all(2.5 * n, Counts(n, n, int(n.sum())))
    assert losses == pytest.approx(dict.fromkeys(DENOMINATORS, 2.5))
