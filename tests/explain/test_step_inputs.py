"""explain --step from the command line, with and without a checkpoint and data of one's own."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from assets import checkpoint_cases
from pretrace.cli.main import app
from pretrace.errors import PretraceError
from pretrace.explain.step_inputs import model_of, read_of
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
