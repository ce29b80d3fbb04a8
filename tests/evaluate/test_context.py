import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluate_toys import memory_document, memory_task
from pretrace.errors import PretraceError
from pretrace.evaluate.context import Cut, derive, fit, seen_under
from pretrace.evaluate.documents import RollingDocument
from pretrace.evaluate.numbers import numbers
from pretrace.score.windows import rolling


def whole(documents):
    return [slice(0, d.n_tokens) for d in documents]


@given(n=st.integers(1, 60), length=st.integers(2, 12), stride=st.integers(1, 12))
def test_seen_is_what_the_windows_of_the_scorer_give(n, length, stride):
    stride = min(stride, length)
    for step, cut in (
        (None, rolling(n, length, stride=length, prefix=0)),
        (stride, rolling(n, length, stride=stride, prefix=0)),
    ):
        seen = np.zeros(n, np.int64)
        for window in cut:
            for t in range(window.scored, window.stop):
                seen[t] = t - window.start + (window.prefix is not None)
        assert seen_under(n, Cut(length, step)).tolist() == seen.tolist()


def test_lm_evaluation_harness_2467_the_score_falls_as_windows_grow_and_one_scoring_says_so():
    # 64 tokens, nats = 2 + 1 / sqrt(seen): windows of 64 once scored; 16 and 8 are derived and compared with scoring them.
    scored = [memory_document(i, 64, 64) for i in range(12)]
    truth = {n: -np.mean([memory_document(0, 64, n).log_likelihood / 64]) for n in (8, 16, 64)}
    assert truth[8] > truth[16] > truth[64]
    curve = fit(scored)
    for length in (16, 8):
        derived = derive(scored, Cut(length), curve, whole(scored))
        # The knots are powers of two: between them the curve is a chord of 1 / sqrt.
        assert derived.nats.mean() / 64 == pytest.approx(truth[length], abs=0.02)


def test_tokens_with_the_same_inputs_are_exact():
    documents = [memory_document(i, 1024, 512) for i in range(9)]
    derived = derive(documents, Cut(256), fit(documents), whole(documents))
    assert derived.exact == 0.5  # the first 256 of each window of 512 are a window of 256


def test_a_score_at_512_is_told_from_one_at_1024_and_the_interval_holds():
    lengths = [3000, 5000, 4200, 7000, 2600]
    scored = memory_task(1024, lengths=lengths, noise=1.5, depth=3.0).documents
    truth = -sum(d.log_likelihood for d in memory_task(512, lengths=lengths, noise=1.5, depth=3.0).documents)
    derived = derive(scored, Cut(512), fit(scored), whole(scored))
    low, high = np.quantile(derived.drawn.sum(1), [0.025, 0.975])
    assert low < truth < high
    assert derived.exact == pytest.approx(
        0.4228, abs=1e-4
    )  # half, less the last windows, which are filled up with context
    assert high - low < 0.06 * sum(lengths)


def test_the_interval_of_another_window_holds_the_truth_as_often_as_it_says():
    inside = 0
    for k in range(40):
        noisy = [memory_document(100 * k + i, 1500, 256, noise=1.0, depth=2.0) for i in range(3)]
        truth = -sum(memory_document(100 * k + i, 1500, 64, noise=1.0, depth=2.0).log_likelihood for i in range(3))
        low, high = np.quantile(derive(noisy, Cut(64), fit(noisy), whole(noisy)).drawn.sum(1), [0.025, 0.975])
        inside += low < truth < high
    assert inside >= 33  # 95% promised: 38 of 40; 33 or fewer has a chance of 2%, with the chord error on top


def test_longer_windows_than_were_scored_are_not_guessed():
    documents = [memory_document(0, 400, 64)]
    assert derive(documents, Cut(128), fit(documents), whole(documents)) is None


def test_rolling_windows_do_not_know_short_contexts():
    # Scored with stride 1 every token has 64 inputs but the first 63: short windows are beyond the curve.
    documents = [memory_document(0, 300, 64, stride=1)]
    assert derive(documents, Cut(32), fit(documents), whole(documents)) is None


def test_sums_alone_say_nothing_of_other_windows():
    sums = RollingDocument(0, -10.0, "a b", "a b", 2)
    with pytest.raises(PretraceError, match="log-likelihood of every token"):
        fit([sums])


def test_the_numbers_of_a_task_hold_the_other_windows_marked_as_estimates():
    found = numbers(memory_task(128, lengths=[900, 700, 800]))
    estimated = [n for n in found if n.basis == "estimated"]
    assert {"disjoint windows of 64", "disjoint windows of 32"} <= {n.departures[-1] for n in estimated}
    assert all(n.exact < 1 and n.interval.low <= n.value <= n.interval.high for n in estimated)


@pytest.mark.interop
def test_disjoint_windows_are_the_harness_s_last_one_filled_up_included():
    utils = pytest.importorskip("lm_eval.utils")
    for n in range(1, 30):
        pairs = utils.get_rolling_token_windows(list(range(n)), prefix_token=-1, max_seq_len=7, context_len=1)
        seen = [len(a) + i for a, b in map(utils.make_disjoint_window, pairs) for i in range(len(b))]
        assert seen_under(n, Cut(7)).tolist() == seen
