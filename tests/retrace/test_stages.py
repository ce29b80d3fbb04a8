"""The stages before the replay: what they say, and when they may end a case."""

import json
from dataclasses import replace

import pytest

import pretrace.retrace.case as cases
from pretrace.cli.main import main
from pretrace.errors import PretraceError
from pretrace.provenance.losses import PermutationTest
from pretrace.retrace import run
from pretrace.retrace.losses import LossTest
from pretrace.retrace.parts import DeltaLoss, Pair, Palimpsest, Reference, SiblingDistance
from pretrace.retrace.sibling_distance import Distance, judge, sibling_distance
from pretrace.retrace.stages import before_replay, contradicted_by, holm
from pretrace.retrace.words import lines
from pretrace.spec import build
from pretrace.train import run as train
from retrace_lab import lab_recipe

DRAWN = {"permutations": 999, "seed": 1, "alpha": 0.01, "may_end": True}
LATE = DeltaLoss(windows=((59, 60),), seen=64, later=400, **DRAWN)


def loss_test(name, p, z=0.0):
    found = PermutationTest(0.5, z, p, 999, 100)
    return LossTest(name, "delta-loss of (59, 60]", 8, 400, found, found)


def silent(what):
    pass


# ---------------------------------------------------------------- delta-loss and palimpsest


def test_holm_steps_down_and_stops_at_the_first_that_fails():
    assert holm({"a": 0.004, "b": 0.02, "c": 0.03}, 0.05) == {"a", "b", "c"}
    assert holm({"a": 0.004, "b": 0.03, "c": 0.03}, 0.05) == {"a"}
    assert holm({"a": 0.02, "b": 0.03, "c": 0.04}, 0.05) == set()


@pytest.mark.parametrize(
    ("claim_p", "rival_p", "rival"),
    [(0.5, 0.001, "rival"), (0.5, 0.2, None), (0.04, 0.001, None), (0.5, 0.006, None)],
)
def test_only_a_rival_that_was_seen_beside_a_claim_that_was_not_contradicts(claim_p, rival_p, rival):
    tests = [loss_test("claim", claim_p), loss_test("rival", rival_p, z=-5.0)]
    found = contradicted_by("claim", tests, 0.01)
    assert (found and found.hypothesis) == rival


def test_a_window_contradicts_a_false_label_before_anything_is_trained(long_case, tmp_path):
    result = run(long_case.model_copy(update={"delta_loss": LATE}), tmp_path, workers=0)
    assert (result.outcome, result.explained_by, result.n_runs) == ("contradicted", "a", 0)
    assert [(stage.name, stage.ended) for stage in result.stages] == [("integrity", False), ("delta-loss", True)]
    assert result.hypotheses == ()
    text = "\n".join(lines(result))
    assert "CONTRADICTED: the model has seen what 'a' claims" in text
    assert "not run: sibling distance (the case declares no counterpart)" in text
    assert len(result.loss_tests) == 3


def test_a_true_claim_is_never_ended_by_a_window(long_case, tmp_path):
    found = before_replay(long_case.model_copy(update={"delta_loss": LATE, "claim": "a"}), tmp_path, silent)
    assert found.ending is None
    assert found.stages[-1].says == "delta-loss of (59, 60]: the model has seen what 'a' claims (alpha 0.01, Holm)"


def test_what_the_case_did_not_allow_to_end_only_speaks(long_case, tmp_path):
    polite = LATE.model_copy(update={"may_end": False})
    found = before_replay(long_case.model_copy(update={"delta_loss": polite}), tmp_path, silent)
    assert (found.ending, len(found.stages)) == (None, 1)


def test_the_ranks_with_an_outsider_contradict_a_false_label(long_case, tmp_path):
    outside = long_case.at("sibling/checkpoints/step-00000060")  # read another order of the same data
    ranks = Palimpsest(step=60, sequences=480, outsider=outside, **DRAWN)
    found = before_replay(long_case.model_copy(update={"palimpsest": ranks}), tmp_path, silent)
    assert found.ending.explained_by == "a"
    assert found.ending.stage == "palimpsest"


def test_an_outsider_that_had_read_the_order_ends_nothing(long_case, tmp_path):
    inside = long_case.at("reference/checkpoints/step-00000060")
    ranks = Palimpsest(step=56, sequences=448, outsider=inside, **DRAWN)
    found = before_replay(long_case.model_copy(update={"palimpsest": ranks}), tmp_path, silent)
    assert found.ending is None
    assert "the outsider was itself trained on 'a'" in found.stages[-1].says


def test_ranks_without_an_outsider_may_not_end_a_case():
    with pytest.raises(PretraceError, match="may_end needs one"):
        build(Palimpsest, {"step": 4, "sequences": 8, "outsider": None, **DRAWN}, where="test")


def test_too_few_permutations_for_the_declared_alpha_are_refused(long_case):
    few = LATE.model_copy(update={"permutations": 99})
    data = long_case.model_dump(mode="json") | {"delta_loss": few.model_dump(mode="json")}
    with pytest.raises(PretraceError, match=r"99 permutations cannot reach alpha 0\.01 over 3 hypotheses"):
        build(cases.Case, data, where="test")


# ---------------------------------------------------------------- sibling distance


def distances(own, *others):
    return (Distance("reference", 4, own, 0.9), *(Distance(f"size{k}", 4, d, 0.5) for k, d in enumerate(others)))


PLACE = Reference(checkpoints="x", dtype="float16")
DECLARED = SiblingDistance(counterpart=PLACE, made_by="a", pairs={}, collapse=0.25, may_end=True)


def test_a_difference_has_collapsed_below_the_declared_part_of_the_nearest_couple():
    assert judge(distances(0.05, 0.5, 0.3), DECLARED, 4).collapsed
    assert not judge(distances(0.08, 0.5, 0.3), DECLARED, 4).collapsed
    assert "the usual difference is there" in judge(distances(0.3, 0.5), DECLARED, 4).says


def test_without_other_couples_nothing_is_usual():
    found = judge(distances(0.01), DECLARED, 4)
    assert not found.collapsed
    assert "no other couple says what is usual" in found.says


@pytest.fixture(scope="module")
def couples(tmp_path_factory, editions):
    """A counterpart that is of `a` as the reference is, a true one of `b`, and a couple of another start on `a` and `b`."""
    folder = tmp_path_factory.mktemp("couples")
    a, b = editions
    alone = {"step.world_size": 1, "step.micro_batch": 8}
    for name, recipe in {
        "of-a": lab_recipe(a, edits=alone), "of-b": lab_recipe(b), "small-a": lab_recipe(a, init_seed=5),
        "small-b": lab_recipe(b, init_seed=5),
    }.items():  # fmt: skip
        train(recipe, folder / name)
    return folder


def declared(folder, counterpart, made_by="a"):
    a, b, other = (
        Reference(checkpoints=str(folder / name / "checkpoints"), dtype="float16")
        for name in ("small-a", "small-b", counterpart)
    )
    return SiblingDistance(
        counterpart=other, made_by=made_by, pairs={"small": Pair(a=a, b=b)}, collapse=0.25, may_end=True
    )


def test_a_collapsed_difference_contradicts_without_training(made, couples, tmp_path):
    _, case, _ = made
    result = run(case.model_copy(update={"sibling_distance": declared(couples, "of-a")}), tmp_path, workers=0)
    assert (result.outcome, result.explained_by, result.n_runs) == ("contradicted", "a", 0)
    assert result.reason.startswith("its updates are those of the counterpart, which 'a' made")
    assert result.siblings.collapsed
    assert [d.pair for d in result.siblings.distances if d.step == 4] == ["reference", "small"]


def test_a_difference_that_is_there_ends_nothing(made, couples, tmp_path):
    _, case, _ = made
    found = before_replay(
        case.model_copy(update={"sibling_distance": declared(couples, "of-b", "b")}), tmp_path, silent
    )
    assert found.ending is None
    assert "the usual difference is there" in found.stages[-1].says


def test_a_collapse_that_the_claim_predicts_ends_nothing(made, couples, tmp_path):
    _, case, _ = made
    agreeing = case.model_copy(update={"sibling_distance": declared(couples, "of-a"), "claim": "a"})
    found = before_replay(agreeing, tmp_path, silent)
    assert (found.siblings.collapsed, found.ending) == (True, None)


def test_a_counterpart_of_another_start_or_a_copy_is_not_compared(made, couples, tmp_path):
    folder, case, _ = made
    other = case.model_copy(update={"sibling_distance": declared(couples, "small-b", "b")})
    found = before_replay(other, tmp_path, silent)
    assert "start from different values" in found.siblings.why_not
    assert [check.check for check in found.not_run] == ["sibling distance", "delta-loss", "palimpsest"]
    copy = replace_counterpart(declared(couples, "of-a"), str(folder / "reference" / "checkpoints"))
    found = before_replay(case.model_copy(update={"sibling_distance": copy}), tmp_path, silent)
    assert "is a copy of the other" in found.siblings.why_not


def replace_counterpart(given, checkpoints):
    return given.model_copy(update={"counterpart": Reference(checkpoints=checkpoints, dtype="float16")})


def test_the_verb_prints_every_couple_and_leaves_with_one_where_it_collapsed(made, couples, tmp_path, capsys):
    folder, case, _ = made
    path = folder / "with-counterpart.yaml"
    path.write_text(cases.to_yaml(case.model_copy(update={"sibling_distance": declared(couples, "of-a")})))
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "sibling", str(path), "--out", str(tmp_path), "--json"])
    assert stop.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert data["collapsed"] is True
    found = sibling_distance(cases.load(path), cases.load(path).sibling_distance, tmp_path)
    assert replace(found, distances=()).says == data["says"]
