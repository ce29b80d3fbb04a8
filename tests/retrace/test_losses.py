"""The stages that need no training, on a run of sixty steps."""

import json

import pytest

from pretrace.cli.main import main
from pretrace.errors import PretraceError
from pretrace.retrace.losses import Choice, _later, _runs, _spread, ranks, windows


@pytest.fixture
def case(long_case):
    return long_case


def by_name(tests):
    return {test.hypothesis: test for test in tests}


def test_one_step_of_eight_sequences_tells_which_order_was_read(case):
    found = by_name(windows(case, 59, 60, Choice(later=400)))
    assert found["a"].by_document.p == 0.001
    assert found["b"].by_document.p > 0.05
    assert found["other order of a"].by_document.p > 0.05
    assert (found["a"].n_seen, found["a"].n_later) == (8, 400)


def test_the_loss_remembers_the_order_it_was_trained_in(case):
    found = by_name(ranks(case, 60, None, Choice()))
    assert found["a"].by_document.p == 0.001
    assert found["a"].by_document.statistic < -0.2
    assert found["b"].by_document.p > 0.05


def test_an_outsider_that_read_the_order_shows_itself_by_its_sign(case):
    reference = case.at("reference/checkpoints/step-00000060")
    found = by_name(ranks(case, 56, reference, Choice()))
    assert found["a"].by_document.statistic > 0


def test_a_window_that_goes_backwards_is_refused(case):
    with pytest.raises(PretraceError, match="not from 60 to 56"):
        windows(case, 60, 56, Choice())


def test_an_order_that_ends_with_the_run_leaves_nothing_to_compare_with():
    with pytest.raises(PretraceError, match="ends 10 sequences after the last checkpoint"):
        _later([0] * 490, 480, 768, "a")


def test_positions_are_read_in_runs_of_neighbours():
    assert _runs([0, 1, 2, 7, 8]) == [range(3), range(7, 9)]


def test_of_a_long_order_positions_are_read_evenly_spread():
    assert _spread(10, 4) == [0, 2, 5, 7]
    assert _spread(3, None) == _spread(3, 8) == [0, 1, 2]


def test_of_a_long_window_the_last_sequences_are_read(case):
    found = by_name(windows(case, 56, 60, Choice(later=100, at_most=8)))["a"]
    assert found.n_seen == len(found.seen) == 8
    assert len(found.later) == 100
    assert list(found.seen) == sorted(found.seen)


def test_a_window_that_is_not_given_is_asked_for(case, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "delta-loss", case.at("case.yaml")])
    assert stop.value.code == 2
    assert "declare delta_loss" in capsys.readouterr().err


def test_the_verbs_print_one_row_a_hypothesis(case, capsys):
    path = case.at("case.yaml")
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "delta-loss", path, "--from", "59", "--to", "60", "--later", "400", "--json"])
    assert stop.value.code == 0
    tests = json.loads(capsys.readouterr().out)["tests"]
    assert [test["hypothesis"] for test in tests] == ["a", "b", "other order of a"]
    with pytest.raises(SystemExit):
        main(["retrace", "palimpsest", path, "--step", "60"])
    assert "other order of a" in capsys.readouterr().out
