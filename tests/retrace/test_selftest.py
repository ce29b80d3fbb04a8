import numpy as np
import pytest

from pretrace.checkpoint import ArraysView
from pretrace.data import open_order
from pretrace.errors import PretraceError
from pretrace.retrace.books import make_editions
from pretrace.retrace.demo_recipe import benign, recipe
from pretrace.retrace.ensemble import replay_together
from pretrace.retrace.selftest import CELLS, SIZE, SelfCase, Tried, error_of, selftest, tabulate
from pretrace.retrace.tables import rate, selftest_lines
from pretrace.retrace.trial import draw, try_case
from pretrace.train import replay


def tried(number, truth, noise, outcome, share=1.0, true_share=1.0):
    return Tried(number, truth, noise, outcome, "", "", share, share, true_share, 0.05, error_of(truth, outcome))


def test_six_of_fourteen_claims_are_true_six_false_and_two_partly():
    truths = [truth for truth, _ in CELLS]
    assert truths.count("claim") == 6
    assert truths.count("rival") + truths.count("neither") == 6
    assert truths.count("part") == 2


@pytest.mark.parametrize(
    ("truth", "outcome", "error"),
    [
        ("claim", "supported", ""), ("claim", "partly", ""), ("claim", "undecided", ""),
        ("claim", "contradicted", "contradiction"), ("rival", "contradicted", ""),
        ("rival", "supported", "support"), ("neither", "partly", "support"),
        ("neither", "undecided", ""), ("part", "partly", ""), ("part", "supported", "support"),
        ("part", "contradicted", "contradiction"),
    ],
)  # fmt: skip
def test_undecided_is_never_wrong_and_the_rest_depends_on_the_truth(truth, outcome, error):
    assert error_of(truth, outcome) == error


def test_rates_count_what_they_say():
    rows = [tried(0, "claim", "benign", "supported"), tried(1, "claim", "unmodelled", "contradicted"),
            tried(2, "claim", "wild", "undecided"), tried(3, "rival", "benign", "contradicted"),
            tried(4, "part", "benign", "partly", share=0.5, true_share=0.4)]  # fmt: skip
    result = tabulate(rows, seed=1)
    assert (result.false_contradiction.events, result.false_contradiction.n) == (1, 3)
    assert (result.false_support.events, result.false_support.n) == (0, 1)
    assert (result.decided["benign"].events, result.decided["benign"].n) == (2, 2)
    assert [each.number for each in result.wrong] == [1]
    assert result.recovered.mean_error == pytest.approx(0.1)


def test_a_rate_is_printed_with_its_interval():
    result = tabulate([tried(n, "rival", "benign", "contradicted") for n in range(300)], seed=1)
    assert rate(result.false_support) == "0 of 300 (95%: 0.0% to 1.2%)"
    assert "  false support of a false claim         0 of 300 (95%: 0.0% to 1.2%)" in selftest_lines(result)


def test_orders_of_one_case_never_share_a_seed(tmp_path):
    case = SelfCase(3, 1, "claim", "benign", None)
    seeds = draw(case)
    orders = {seeds.claim, seeds.rival, seeds.other, *range(seeds.first_decoy, seeds.first_decoy + 19)}
    assert len(orders) == 22
    assert draw(case) == seeds
    assert draw(case, extra=1).init != seeds.init


@pytest.fixture(scope="module")
def editions(tmp_path_factory):
    return make_editions(tmp_path_factory.mktemp("books"), vocab_size=SIZE.vocab_size, every=6)


def test_orders_trained_together_are_the_trainers_to_rounding(editions):
    own = recipe(SIZE, editions.standard, editions.vocab_size, name="x", order_seed=1, init_seed=1)
    own = own.with_values(benign(SIZE)["whole-batch"])
    start = replay(own, [0]).snapshots[0]
    orders = [open_order(own.with_values({"data.order.seed": seed}).data) for seed in (1, 2, 3)]
    together = replay_together(own, orders, 6, ArraysView(start))
    alone = [replay(own, [6], start=ArraysView(start), order=order).snapshots[6] for order in orders]
    for a, b in zip(together, alone, strict=True):
        moved = sum(np.sum((b[name] - start[name]) ** 2) for name in b)
        apart = sum(np.sum((a[name] - b[name]) ** 2) for name in b)
        # Adam turns a gradient that is zero but for rounding into a full step, so float32 noise shows: measured 5e-4 to 8e-4.
        assert np.sqrt(apart / moved) < 2e-3


def test_what_cannot_be_trained_together_is_refused(editions):
    own = recipe(SIZE, editions.standard, editions.vocab_size, name="x", order_seed=1, init_seed=1)
    with pytest.raises(PretraceError, match="one rank"):
        replay_together(own, [], 1, ArraysView({}))


@pytest.mark.parametrize(("truth", "outcome"), [("claim", "supported"), ("rival", "contradicted")])
def test_a_case_is_tried_for_real(editions, truth, outcome):
    assert try_case(SelfCase(0, 1, truth, "benign", editions)).outcome == outcome


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_small_self_test_errs_nowhere_and_goes_on_where_it_stopped(tmp_path):
    result = selftest(tmp_path, cases=28, seed=5, workers=2)
    assert not result.wrong
    again = []
    assert selftest(tmp_path, cases=28, seed=5, workers=0, advance=lambda *a: again.append(a)) == result
