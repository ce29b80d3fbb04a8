import math

import pytest

from pretrace.evaluate.against import beside, first_sentence
from pretrace.evaluate.harness_results import Figure


def figure(value, stderr=math.nan, metric="acc", **more):
    return Figure("m", None, "lambada_openai", metric, value, stderr, **more)


def judged(ours, theirs):
    (found,) = beside([ours], [theirs])
    return found


def test_five_million_and_38_are_different_whatever_the_standard_error_on_the_plain_scale():
    ours = figure(5.233e6, 1.7e7, "perplexity", n=60, low=5.187e5, high=6.032e7)
    found = judged(ours, figure(38.06, 1.44, "ppl"))
    assert found.judgement == "different"
    assert found.sentence().endswith("1.37e+05 times [1.36e+04, 1.59e+06]: different on 60 rows")


def test_none_of_sixty_right_is_not_known_to_be_less_than_two_percent():
    # 0.98 ** 60 = 30%: nothing can be said
    found = judged(figure(0.0, 0.0, n=60, low=0.0, high=0.06), figure(0.02, 0.002))
    assert found.judgement == "not distinguishable"
    assert found.low < 0 < found.high


def test_all_rows_right_without_an_interval_uses_the_number_of_rows():
    assert judged(figure(1.0, 0.0, n=20), figure(0.9, 0.01)).judgement == "not distinguishable"
    assert judged(figure(1.0, 0.0, n=2000), figure(0.9, 0.01)).judgement == "different"


def test_the_number_of_rows_follows_from_a_published_standard_error():
    # 0.25 and 0.0456 -> n = 0.25 * 0.75 / 0.0456^2 + 1 = 91
    found = judged(figure(0.25, 0.0456), figure(0.25 + 1e-9, math.nan))
    assert found.high == pytest.approx(0.0977, abs=1e-3)
    assert found.low == pytest.approx(-0.0783, abs=1e-3)


def test_bits_are_compared_as_they_are():
    found = judged(figure(0.95, 0.01, "bits_per_byte"), figure(1.0, 0.01, "bits_per_byte"))
    assert not found.logarithm
    assert (found.low, found.high) == pytest.approx((-0.0777, -0.0223), abs=1e-4)


def test_equal_and_unsure_figures_are_counted_apart():
    found = [judged(figure(0.5, 0.1), figure(0.5, 0.1)), judged(figure(0.5), figure(0.6))]
    assert first_sentence(found) == (
        "0 of 2 figures differ by more than their intervals, 0 are not distinguishable, 1 equal, 1 without an interval"
    )
    assert "nothing can be said" in found[1].sentence()
