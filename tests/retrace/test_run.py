"""Whole cases, small and real: every run is trained here."""

import json
import shutil
from importlib import import_module

import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from pretrace.cli.console import plain
from pretrace.errors import PretraceError
from pretrace.provenance import EXIT_CODES
from pretrace.retrace import load_case, run
from pretrace.retrace.case import Start
from pretrace.retrace.run import Watch
from pretrace.train import run as train
from retrace_lab import STREAM, documents, edition, lab_case, lab_recipe, on


def changed(made, **changes):
    """The same case with other words in it; its kept runs serve again."""
    folder, case, _ = made
    other = case.model_copy(update=changes)
    made_again = []
    result = run(other, folder, workers=0, watch=Watch(advance=lambda done, total, what: made_again.append(what)))
    return result, made_again


def test_a_false_label_is_contradicted_by_the_edition_that_made_it(made):
    _, _, result = made
    assert (result.outcome, result.explained_by) == ("contradicted", "a")
    assert [found.name for found in result.hypotheses] == ["b", "a"]
    assert result.hypotheses[1].status == "reproduced"
    assert result.sibling.status == "reproduced"


def test_the_true_label_is_supported_from_the_same_runs(made):
    result, made_again = changed(made, claim="a")
    assert (result.outcome, EXIT_CODES[result.outcome]) == ("supported", 0)
    assert made_again == ["kept from an earlier start"]


def test_the_json_has_the_keys_that_scripts_rely_on(made):
    data = json.loads(json.dumps(plain(made[2])))
    assert {"outcome", "claim", "deciding_step", "alpha", "hypotheses", "reason", "would_settle"} <= set(data)
    keys = {
        "name",
        "status",
        "centred",
        "share",
        "duels",
        "p_exact",
        "n_decoys",
        "p_tail",
        "p_same",
        "p_cos",
        "u_cos",
        "l2",
    }
    assert all(keys <= set(found) for found in data["hypotheses"])


def test_only_the_deciding_step_decides_and_all_are_reported(made):
    result = made[2]
    assert [(at.step, at.deciding) for at in result.steps] == [(1, False), (2, False), (4, True)]
    assert result.steps[0].hypotheses[0].status == "blind"  # the warm-up begins at learning rate 0
    assert result.hypotheses == result.steps[2].hypotheses


def test_every_tensor_and_every_setting_is_described(made):
    result = made[2]
    assert len(result.settings) == 10
    assert set(result.localiser["a"]) > {"embed.weight", "blocks.0.attn.q.weight"}
    assert [curve.name for curve in result.curves] == ["reference", "a", "b"]
    assert len(result.curves[0].records) == 4


def test_the_digest_is_told_before_the_reference_is_read(made, tmp_path):
    _, case, result = made
    gone = case.model_copy(
        update={"reference": case.reference.model_copy(update={"checkpoints": str(tmp_path / "none")})}
    )
    told = []
    with pytest.raises(PretraceError, match="1 input of the case is not here"):
        run(gone, tmp_path / "out", workers=0, watch=Watch(locked=told.append))
    assert told == [result.case_digest]


def test_a_step_that_is_not_there_is_named(made, tmp_path):
    _, case, _ = made
    with pytest.raises(
        PretraceError, match=r"2 inputs.* are not here[^$]*reference, steps 3 \(steps 0, 1, 2, 4 are there\)"
    ):
        run(case.model_copy(update={"steps": (3, 4)}), tmp_path, workers=0)


def test_editions_that_coincide_leave_the_case_undecided(made, editions):
    result, _ = changed(made, claim="a", hypotheses={**made[1].hypotheses, "b": made[1].hypotheses["a"]})
    assert (result.outcome, EXIT_CODES[result.outcome]) == ("undecided", 3)
    assert "same batches at every step" in result.reason


def test_a_duplicated_step_ends_the_case_at_integrity(made, tmp_path):
    folder, case, _ = made
    shutil.copytree(folder / "reference" / "checkpoints", tmp_path / "series")
    shutil.rmtree(tmp_path / "series" / "step-00000002")
    shutil.copytree(tmp_path / "series" / "step-00000004", tmp_path / "series" / "step-00000002")
    broken = case.model_copy(
        update={"reference": case.reference.model_copy(update={"checkpoints": str(tmp_path / "series")})}
    )
    result = run(broken, tmp_path / "out", workers=0)
    assert result.outcome == "undecided"
    assert [finding.code for finding in result.findings if finding.severity == "error"] == ["trajectory-same"]
    assert result.reason.startswith("the reference is unusable: step-00000002")
    assert result.n_runs == 0


def test_exchanged_steps_end_the_case_at_integrity(made, tmp_path):
    folder, case, _ = made
    series = tmp_path / "series"
    shutil.copytree(folder / "reference" / "checkpoints", series)
    (series / "step-00000002").rename(series / "kept")
    (series / "step-00000004").rename(series / "step-00000002")
    (series / "kept").rename(series / "step-00000004")
    broken = case.model_copy(update={"reference": case.reference.model_copy(update={"checkpoints": str(series)})})
    result = run(broken, tmp_path / "out", workers=0)
    assert (result.outcome, result.n_runs) == ("undecided", 0)
    assert "step-order" in [finding.code for finding in result.findings]


def of_series(case, folder):
    """The same case on a series in another folder."""
    return case.model_copy(update={"reference": case.reference.model_copy(update={"checkpoints": str(folder)})})


def test_a_step_that_holds_zeros_ends_the_case_at_integrity(made, tmp_path):
    folder, case, _ = made
    series = tmp_path / "series"
    shutil.copytree(folder / "reference" / "checkpoints", series)
    file = series / "step-00000004" / "model.safetensors"
    with safe_open(file, "np") as opened:
        tensors, metadata = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    tensors["gpt_neox.embed_in.weight"][:] = 0
    save_file(tensors, file, metadata=metadata)
    (series / "step-00000004" / "manifest.json").unlink()  # as somebody publishes it
    result = run(of_series(case, series), tmp_path / "out", workers=0)
    assert (result.outcome, result.n_runs) == ("undecided", 0)
    assert "step 4" in result.reason
    assert "zeros" in result.reason


def put_in(made, truth, steps, folder, monkeypatch):
    """The reference's series with some steps of another run, too near for the distances of the integrity stage to show it."""
    monkeypatch.setattr(import_module("pretrace.retrace.run"), "check", lambda *_: ())
    train(truth, folder / "other")
    shutil.copytree(made[0] / "reference" / "checkpoints", folder / "series")
    for step in steps:
        shutil.rmtree(folder / "series" / f"step-{step:08d}")
        shutil.copytree(folder / f"other/checkpoints/step-{step:08d}", folder / "series" / f"step-{step:08d}")
    return run(of_series(made[1], folder / "series"), made[0], workers=0)


def test_a_deciding_step_of_another_run_leaves_the_case_undecided(made, editions, tmp_path, monkeypatch):
    result = put_in(made, lab_recipe(editions[1]), [4], tmp_path, monkeypatch)
    assert result.outcome == "undecided"
    assert result.reason == "the steps of the reference disagree: 'a' explains step 2, 'b' explains step 4"


def test_a_start_of_another_run_contradicts_nothing(made, editions, tmp_path, monkeypatch):
    result = put_in(made, lab_recipe(editions[0], init_seed=5), [1, 2, 4], tmp_path, monkeypatch)
    assert result.outcome == "undecided"
    assert "its start may be another run's" in result.reason


def test_a_reference_that_is_stored_coarser_than_declared_is_refused(made, tmp_path):
    case = made[1].model_copy(update={"reference": made[1].reference.model_copy(update={"dtype": "float32"})})
    with pytest.raises(PretraceError, match=r"is stored in float16, and the case declares float32"):
        run(case, tmp_path, workers=0)


def test_the_reference_cannot_vouch_for_itself(made, tmp_path):
    itself = made[1].sibling.model_copy(update={"reference": made[1].reference})
    with pytest.raises(PretraceError, match=r"sibling's step 4 is the reference's"):
        run(made[1].model_copy(update={"sibling": itself}), tmp_path, workers=0)


def test_orders_that_part_after_the_deciding_step_are_undecided_with_the_step(tmp_path, editions):
    # Documents in the order of the file: b leaves out document 60 and on, which the first 4 steps of 8 do not reach.
    a, b = editions
    truth = lab_recipe(a, edits={"data.order": STREAM})
    case = lab_case(tmp_path, truth, {"a": on(a), "b": on(b)}, "b", sibling=truth.with_values({"seeds.init": 9}))
    case = case.model_copy(update={"decoys": case.decoys.model_copy(update={"seed_key": "data.order.sample_seed"})})
    result = run(case, tmp_path, workers=0)
    (rival,) = result.rivals
    assert rival.first_step > case.deciding_step
    assert result.outcome == "undecided"
    assert f"share every batch up to step {rival.first_step - 1}" in result.reason
    assert f"from step {rival.first_step} on" in result.would_settle


def test_settings_that_were_not_modelled_leave_a_residual_and_the_right_data(tmp_path, editions):
    a, b = editions
    truth = lab_recipe(a, edits={"model.dropout.residual": 0.1, "step.schedule.peak": 2.2e-3})
    label = lab_recipe(a)
    case = lab_case(
        tmp_path, truth, {"a": on(a), "b": on(b)}, "a", label=label, sibling=lab_recipe(a, order_seed=7, init_seed=7)
    )
    result = run(case, tmp_path, workers=0)
    assert result.outcome == "supported"
    assert "unexplained residual" in result.reason


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_from_the_middle_with_burnt_in_moments_finds_the_order(tmp_path, editions):
    a, b = editions
    longer = {
        "steps": 24,
        "data.order.num_samples": 300,
        "checkpoints.at": [0, 20, 22],
        "step.schedule.warmup_steps": 8,
    }
    truth = lab_recipe(a, edits=longer)
    case = lab_case(tmp_path, truth, {"a": on(a), "b": on(b)}, "b", start=Start(step=20, burn_in=12), steps=(22, 24),
                    deciding_step=24)  # fmt: skip
    result = run(case, tmp_path, workers=0)
    found = {each.name: each for each in result.hypotheses}
    assert found["a"].p_exact == 0.05
    assert found["a"].centred > found["a"].threshold
    assert found["b"].status in ("absent", "unclear")
    assert result.outcome in ("contradicted", "undecided")
    assert result.sibling.p_exact == 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("wrong", "steps"),
    [
        ({"step.schedule.warmup_steps": 16}, 16),
        ({"model.dropout.residual": 0.1}, 16),
        # A second moment that decays too slowly shows late: at step 32 it is still within benign noise.
        ({"step.optimizer.betas": [0.9, 0.999]}, 64),
    ],
    ids=["warm-up", "dropout", "beta2"],
)
def test_a_wrong_settings_list_gives_the_right_data_verdict_with_unexplained_residual(tmp_path, wrong, steps):
    docs = documents(400)
    a, b = edition(tmp_path, "a", docs), edition(tmp_path, "b", docs[:300])
    longer = {
        "steps": steps,
        "data.order.num_samples": 8 * steps,
        "step.schedule.warmup_steps": 8,
        "checkpoints.at": [0],
    }
    label = lab_recipe(a, edits=longer)
    beside = label.with_values({"data.order.seed": 7, "seeds.init": 7})
    case = lab_case(tmp_path, label.with_values(wrong), {"a": on(a), "b": on(b)}, "a", label=label, sibling=beside,
                    steps=(steps,), deciding_step=steps)  # fmt: skip
    result = run(case, tmp_path, workers=0)
    assert result.outcome == "supported"
    assert "an unexplained residual is left" in result.reason


def test_a_case_can_be_read_from_its_file(made):
    folder, case, _ = made
    assert load_case(folder / "case.yaml") == case
