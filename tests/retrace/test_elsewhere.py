"""A hypothesis that was trained elsewhere: evidence beside the replays, never a licence."""

import shutil

import pytest

import pretrace.retrace.case as cases
from pretrace.errors import PretraceError
from pretrace.recipe.read import to_yaml
from pretrace.retrace import run
from pretrace.retrace.parts import Elsewhere
from pretrace.retrace.words import lines
from pretrace.spec import build
from pretrace.train import run as train
from retrace_lab import lab_recipe


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, editions):
    """The reference's recipe in float32 on one rank, as somebody else may have run it; and one on another start."""
    folder = tmp_path_factory.mktemp("theirs")
    a, b = editions
    alone = {"step.world_size": 1, "step.micro_batch": 8, "step.kernels.compute_dtype": "float32"}
    for name, recipe in {
        "same": lab_recipe(a, edits=alone), "other": lab_recipe(b, edits=alone), "elsewhen": lab_recipe(a, init_seed=9),
    }.items():  # fmt: skip
        train(recipe, folder / name)
        (folder / f"{name}.yaml").write_text(to_yaml(recipe))
    return folder


def with_theirs(made, theirs, **names):
    folder, case, _ = made
    given = {
        name: Elsewhere(runs=str(theirs / path / "checkpoints"), recipe=str(theirs / f"{path}.yaml"))
        for name, path in names.items()
    }
    return folder, case.model_copy(update={"hypotheses": {**case.hypotheses, **given}})


def test_it_is_set_beside_the_replays_and_changes_no_verdict(made, theirs):
    folder, case = with_theirs(made, theirs, same="same", other="other")
    result = run(case, folder, workers=0)
    before = made[2]
    assert (result.outcome, result.explained_by, result.hypotheses) == ("contradicted", "a", before.hypotheses)
    same, other = result.elsewhere
    assert (same.mark, same.decoys_of, other.decoys_of) == ("not replayed here", "a", "b")
    last = same.steps[-1]
    assert (last.step, last.above_decoys, last.n_decoys) == (4, 19, 19)
    assert last.centred > 0.9 > other.steps[-1].centred
    assert last.to_hypotheses["a"] > last.to_hypotheses["b"]
    assert result.case_digest != before.case_digest  # what is declared is locked too
    text = "\n".join(lines(result))
    assert "same  not replayed here, step 4: U.Cos" in text
    assert "above 19 of the 19 decoys of a" in text


def test_a_run_from_another_start_is_shown_as_not_comparable(made, theirs):
    folder, case = with_theirs(made, theirs, late="elsewhen")
    (found,) = run(case, folder, workers=0).elsewhere
    assert found.steps == ()
    assert "did not start from the same values" in found.why_not


def test_a_series_with_a_repeated_step_is_not_described(made, theirs, tmp_path):
    shutil.copytree(theirs / "same" / "checkpoints", tmp_path / "bad" / "checkpoints")
    shutil.copy(theirs / "same.yaml", tmp_path / "bad.yaml")
    shutil.rmtree(tmp_path / "bad" / "checkpoints" / "step-00000002")
    shutil.copytree(tmp_path / "bad/checkpoints/step-00000004", tmp_path / "bad/checkpoints/step-00000002")
    folder, case = with_theirs(made, tmp_path, bad="bad")
    (found,) = run(case, folder, workers=0).elsewhere
    assert found.steps == ()
    assert "step-00000002" in found.why_not


def test_only_what_is_replayed_here_can_be_claimed(made, theirs):
    _, case = with_theirs(made, theirs, same="same")
    data = case.model_dump(mode="json") | {"claim": "same"}
    with pytest.raises(PretraceError, match="only what is replayed here can be claimed"):
        build(cases.Case, data, where="test")


def test_a_case_with_one_survives_writing_and_reading(made, theirs, tmp_path):
    _, case = with_theirs(made, theirs, same="same")
    (tmp_path / "case.yaml").write_text(cases.to_yaml(case))
    assert cases.load(tmp_path / "case.yaml").hypotheses == case.hypotheses
