import sys
from types import SimpleNamespace

import pytest

import tiny_recipe
from pretrace.errors import PretraceError
from pretrace.runlog.record import Record
from pretrace.train import Company, RunFolder, resume, run
from pretrace.train.loggers import Guarded, open_loggers, scalars

RECORD = Record(
    step=3, loss=2.5, lr=1e-3, n_tokens=8, n_counted=8, grad_norm=float("inf"), notes={"held_out_loss": 2.0}
)


def test_what_was_measured_is_plotted_and_what_is_not_finite_is_not():
    assert scalars(RECORD) == {"loss": 2.5, "lr": 1e-3, "held_out_loss": 2.0}


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    company = Company(loggers=["tensorboard"])
    run(tiny_recipe.recipe(tmp_path, steps=5), tmp_path / "run", company=company)
    resume(tmp_path / "run", changes={"steps": 8}, company=company)
    events = EventAccumulator(str(RunFolder(tmp_path / "run").tensorboard))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_project_name_settings_and_every_row(tmp_path, monkeypatch, name):
    seen = []
    service = SimpleNamespace(
        init=lambda **given: (
            seen.append(given) or SimpleNamespace(log=lambda row, step: seen.append((step, row["loss"])))
        ),
        finish=lambda: seen.append("finished"),
    )
    monkeypatch.setitem(sys.modules, name, service)
    recipe, company = tiny_recipe.recipe(tmp_path, steps=2), Company(loggers=[f"{name}:books"])
    run(recipe, tmp_path / "run", company=company)
    assert seen[0]["project"] == "books"
    assert seen[0]["name"].startswith("tiny")
    assert seen[0]["config"]["model.d_model"] == 16
    assert [row[0] for row in seen[1:-1]] == [1, 2]
    assert seen[-1] == "finished"
    resume(tmp_path / "run", changes={"steps": 3}, company=company)
    run(recipe, tmp_path / "another", company=company)
    first, again, other = ((given["name"], given.get("id")) for given in seen if isinstance(given, dict))
    assert first == again
    assert first != other


def test_a_logger_that_fails_is_left_out_and_said_once():
    class Broken:
        def log(self, record):
            raise OSError("no network")

    said = []
    guarded = Guarded([Broken()], said.append)
    guarded.log(RECORD)
    guarded.log(RECORD)
    guarded.close()
    assert said == ["Broken failed and is left out: no network"]


def test_unknown_and_absent_loggers_are_named(tmp_path, monkeypatch):
    recipe = tiny_recipe.recipe(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PretraceError, match="wandb is not installed"):
        open_loggers(["wandb:p"], RunFolder(tmp_path), recipe, 0)
    with pytest.raises(PretraceError, match="unknown logger"):
        open_loggers(["csv"], RunFolder(tmp_path), recipe, 0)
