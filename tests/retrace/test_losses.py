"""The stages that need no training, on a run of sixty steps."""

import json

import pytest

from pretrace.cli.main import main
from pretrace.errors import PretraceError
from pretrace.retrace.losses import Choice, _later, _runs, ranks, windows
from retrace_lab import documents, edition, lab_case, lab_recipe, on


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder, docs = tmp_path_factory.mktemp("losses"), documents(400)
    a, b = edition(folder, "a", docs), edition(folder, "b", docs[:300])
    longer = {"steps": 60, "step.schedule.peak": 0.02, "step.schedule.warmup_steps": 8, "data.order.num_samples": 900,
              "checkpoints.at": [0, 1, 2, 4, 56, 59]}  # fmt: skip
    hypotheses = {"a": on(a), "b": on(b), "other order of a": {"data.order.seed": 99}}
    return lab_case(folder, lab_recipe(a, edits=longer), hypotheses, "b")


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
    reference = f"{case.reference.checkpoints}/step-00000060"
    found = by_name(ranks(case, 56, reference, Choice()))
    assert found["a"].by_document.statistic > 0


def test_an_order_that_ends_with_the_run_leaves_nothing_to_compare_with():
    with pytest.raises(PretraceError, match="ends 10 sequences after the last checkpoint"):
        _later([0] * 490, 480, 768, "a")


def test_positions_are_read_in_runs_of_neighbours():
    assert _runs([0, 1, 2, 7, 8]) == [range(3), range(7, 9)]


def test_the_verbs_print_one_row_a_hypothesis(case, capsys):
    path = str(case.reference.checkpoints).replace("reference/checkpoints", "case.yaml")
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "delta-loss", path, "--from", "59", "--to", "60", "--later", "400", "--json"])
    assert stop.value.code == 0
    tests = json.loads(capsys.readouterr().out)["tests"]
    assert [test["hypothesis"] for test in tests] == ["a", "b", "other order of a"]
    with pytest.raises(SystemExit):
        main(["retrace", "palimpsest", path, "--step", "60"])
    assert "other order of a" in capsys.readouterr().out
