from pathlib import Path

import pytest

from pretrace.errors import PretraceError
from pretrace.retrace.books import Edition
from pretrace.retrace.case import Case, Decoys, Hypothesis, Reference, Start
from pretrace.retrace.demo_recipe import benign
from pretrace.retrace.plan import noise_floor, plan, sibling_plan
from retrace_lab import TINY, lab_recipe

RECIPE = lab_recipe(Edition("a", Path("nowhere"), "0" * 64, 1, 1), order_seed=5)


def case(**changes):
    given = {
        "claim": "own",
        "recipe": "r.yaml",
        "reference": Reference(checkpoints="c", dtype="float16"),
        "hypotheses": {"own": Hypothesis(edits={}), "other": Hypothesis(edits={"data.order.seed": 6})},
        "base": "gas8",
        "benign": benign(TINY),
        "decoys": Decoys(count=19, seed_key="data.order.seed", first_seed=100),
        "sibling": None,
        "no_sibling_because": "a test",
        "start": Start(step=0, burn_in=0),
        "steps": (1, 2),
        "deciding_step": 2,
    }
    return Case(**{**given, **changes})


def test_every_hypothesis_runs_under_every_setting_and_has_its_own_decoys():
    found = plan(case(), RECIPE)
    assert len(found.rows) == 2 * (len(benign(TINY)) + 19)
    assert found.runs["own"].own[0] == "own/gas8"
    assert found.base("other") == "other/gas8"
    assert found.rows["other/decoy-100"].data.order.seed == 100


def test_decoys_and_base_rerun_differ_in_the_seed_alone():
    found = plan(case(), RECIPE)
    base, decoy = found.rows["own/gas8"], found.rows["own/decoy-100"]
    assert base.with_values({"data.order.seed": 100}).digest() == decoy.digest()


def test_a_setting_that_changes_the_batch_is_not_benign():
    wrong = {**benign(TINY), "larger": {"step.world_size": 16}}
    with pytest.raises(PretraceError, match="global batch from 8 to 16"):
        plan(case(benign=wrong), RECIPE)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ({"data.order.seed": 9}, "the data or their order"),
        ({"step.schedule.peak": 0.5}, "the learning rate"),
        ({"step.optimizer.betas": [0.9, 0.9]}, "the optimizer"),
        ({"model.norm_eps": 0.1}, "the model"),
    ],
)
def test_a_setting_that_changes_what_is_learned_is_not_benign(edit, what):
    with pytest.raises(PretraceError, match=f"changes {what}"):
        plan(case(benign={**benign(TINY), "other": edit}), RECIPE)


def test_decoys_whose_seed_does_not_move_the_order_are_refused():
    with pytest.raises(PretraceError, match=r"'seeds.init' does not move the order"):
        plan(case(decoys=Decoys(count=19, seed_key="seeds.init", first_seed=100)), RECIPE)


def test_settings_of_one_precision_are_too_low_a_noise_floor():
    alike = {
        f"gas{n}": {"step.world_size": 1, "step.grad_accum_steps": n, "step.micro_batch": 8 // n} for n in (1, 2, 4, 8)
    }
    (found,) = noise_floor(plan(case(benign=alike), RECIPE), "own")
    assert (found.severity, found.code) == ("warning", "noise-floor")
    assert noise_floor(plan(case(), RECIPE), "own") == ()


def test_a_decoy_that_is_a_hypothesis_is_refused():
    with pytest.raises(PretraceError, match="very order of the hypothesis 'other'"):
        plan(case(decoys=Decoys(count=19, seed_key="data.order.seed", first_seed=6)), RECIPE)


def test_an_edit_of_an_unknown_key_names_the_hypothesis():
    with pytest.raises(PretraceError, match="unknown key") as error:
        plan(case(hypotheses={"own": Hypothesis(edits={"data.seeed": 1})}), RECIPE)
    assert error.value.where == "hypothesis own"


def test_the_sibling_is_judged_on_its_own_recipe():
    found = sibling_plan(case(), RECIPE)
    assert set(found.runs) == {"sibling"}
    assert found.rows["sibling/gas8"].data.order.seed == 5
