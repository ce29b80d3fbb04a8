import math

import numpy as np
import pytest

from pretrace.score.start import judge_start, unigram_nats


@pytest.mark.parametrize(
    ("loss", "expected", "outcome"),
    [
        (math.log(50257), math.nan, "untrained"),  # GPT-2 as initialised: 10.82
        (10.99, math.nan, "untrained"),
        (3.29, math.nan, "plausible"),
        (7.6, 2.77, "off"),  # one host of four had written its shard
        (2.77, 2.77, "sound"),
        (1.5, 2.77, "off"),  # too good is as wrong
        (19.0, 2.77, "broken"),
        (math.nan, 2.77, "broken"),
        (math.inf, math.nan, "broken"),
    ],
)
def test_what_a_starting_loss_says(loss, expected, outcome):
    found = judge_start(loss, 50257, expected=expected)
    assert found.outcome == outcome
    assert found.fine == (outcome in ("sound", "plausible"))
    assert "starting loss" in found.sentence()


def test_a_model_that_knows_frequencies_only_is_blind():
    tokens = np.repeat(np.arange(4), 100)  # unigram entropy ln 4 = 1.386
    assert unigram_nats(tokens) == pytest.approx(math.log(4) + 3 / 800)
    assert judge_start(1.5, 50257, tokens=tokens).outcome == "blind"
    assert judge_start(1.2, 50257, tokens=tokens).outcome == "plausible"


def test_no_tokens_have_no_entropy():
    assert math.isnan(unigram_nats(np.array([], dtype=np.int64)))
