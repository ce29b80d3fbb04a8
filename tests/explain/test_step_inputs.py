"""explain --step from the command line, with and without a checkpoint and data of one's own."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from assets import checkpoint_cases
from pretrace.cli.main import app
from pretrace.data.order import open_order
from pretrace.errors import PretraceError
from pretrace.explain.step_inputs import model_of, plan_of, read_of
from pretrace.explain.swaps import Explanation, Swap, SwapEffect
from pretrace.recipe import to_yaml
from pretrace.report.swaps import bars
from tiny import plan


def files(tmp_path, **changes):
    a, b = plan(), plan(**changes)
    (tmp_path / "a.yaml").write_text(a.to_yaml())
    (tmp_path / "b.yaml").write_text(b.to_yaml())
    return [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]


def test_two_plans_and_nothing_else_are_enough(tmp_path):
    svg = tmp_path / "bars.svg"
    result = CliRunner().invoke(
        app,
        [
            "explain",
            "--step",
            *files(tmp_path, loss__denominator="global_tokens", accum_dtype="bfloat16"),
            "--svg",
            str(svg),
        ],
    )
    assert result.exit_code == 1, result.output
    assert result.output.startswith("loss.denominator moves this update most")
    assert svg.read_text().startswith("<svg")
    assert "loss.denominator" in svg.read_text()


def test_equal_plans_leave_0(tmp_path):
    result = CliRunner().invoke(app, ["explain", "--step", *files(tmp_path), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["explanation"]["effects"] == []


def test_a_checkpoint_and_windows_of_ones_own(tmp_path):
    windows = np.random.default_rng(0).integers(0, 64, (16, 9))
    np.save(tmp_path / "windows.npy", windows)
    case = checkpoint_cases() / "good_neox"
    arguments = ["--checkpoint", str(case), "--data", str(tmp_path / "windows.npy"), "--json"]
    result = CliRunner().invoke(app, ["explain", "--step", *files(tmp_path, loss__z_loss=1e-3), *arguments])
    assert result.exit_code == 1, result.exception
    (effect,) = json.loads(result.output)["explanation"]["effects"]
    assert effect["swap"]["field"] == "loss.z_loss"
    assert effect["head_leak"] > 1e-4  # the z-loss sees what the loss does not


def test_the_book_corpus_has_unequal_lengths_and_any_position():
    batch = read_of(None)(range(410, 420))
    counted = (batch.labels != -100).sum(1)
    assert len(set(counted)) > 3
    assert counted.min() >= 8
    assert batch.tokens.max() < 256


@pytest.mark.parametrize("content", [np.zeros((3, 4)), np.zeros(5, dtype=np.int64), np.array([{}], dtype=object)])
def test_windows_that_are_none_are_refused(tmp_path, content):
    np.save(tmp_path / "x.npy", content, allow_pickle=True)
    with pytest.raises(PretraceError):
        read_of(str(tmp_path / "x.npy"))


def test_too_few_windows_are_said(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), dtype=np.int64))
    with pytest.raises(PretraceError, match="the file has 3 windows"):
        read_of(str(tmp_path / "x.npy"))(range(2, 4))


def test_a_checkpoint_that_is_none_is_an_error_in_words(tmp_path):
    with pytest.raises(PretraceError):
        model_of(str(tmp_path))


def test_recipes_and_runs_are_taken_for_their_plans_and_their_data(tmp_path):
    import tiny_recipe

    whole = tiny_recipe.recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text(to_yaml(whole))
    assert plan_of(tmp_path / "recipe.yaml") == plan_of(tmp_path) == whole.step
    assert (read_of(str(tmp_path))(range(2)).tokens == open_order(whole.data).batch(range(2)).tokens).all()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PretraceError, match="the folder holds no run"):
        plan_of(tmp_path / "empty")


def test_a_negative_warm_up_is_wrong_usage(tmp_path):
    for option in ("--warmup", "--at-step"):
        assert CliRunner().invoke(app, ["explain", "--step", *files(tmp_path), option, "-1"]).exit_code == 2


def test_what_makes_no_difference_has_no_bar():
    still = SwapEffect(Swap("order", (), "a", "b"), 0.0, 1.0, 0.0, 1.0, False, None, 1.0, 1.0, 0.0, 0.0)
    moved = replace(still, swap=Swap("clip", (), "a", "b"), update=0.25)
    drawn = [bars(Explanation(3, still, (effect,), effect)) for effect in (still, moved)]
    assert ["same bits" in svg for svg in drawn] == [True, False]
    assert "0.25" in drawn[1]
