"""`pretrace convert` as a person meets it: what it prints, and with which code it leaves."""

import json
import subprocess
import sys

import pytest

from assets import checkpoint_cases, unpacked
from pretrace.cli.convert_options import OPTIONS

CASES = checkpoint_cases()
STORIES = unpacked("models") / "models" / "stories260k-hf"


def pretrace(*arguments):
    command = [sys.executable, "-m", "pretrace", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_plan_names_the_moves_and_writes_nothing(tmp_path):
    said = pretrace(CASES / "good_gpt2_tied", tmp_path / "out", "--to", "nanogpt", "--plan")
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith("PLAN ")
    assert lines[0].endswith("nothing was written")
    (row,) = (line for line in lines if line.strip().startswith("transformer.h.{0..2}.attn.c_proj.weight"))
    assert "transpose (Conv1D)" in row
    assert any("note    nanoGPT computes the exact GELU" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_json_has_the_keys_that_scripts_rely_on(tmp_path):
    said = pretrace(STORIES, tmp_path / "out", "--to", "dcp", "--json")
    assert said.returncode == 0, said.stderr
    made = json.loads(said.stdout)
    assert made["tensors"] == 47
    assert made["bytes"] > 260_032 * 4
    assert made["proof"]["round_trip"] == "bitwise"
    assert made["proof"]["logits_max_ulp"] < 64
    assert made["proof"]["probe_loss"] == pytest.approx(4.5454, abs=1e-3)


def test_help_groups_the_options_and_names_each_once():
    shown = pretrace("--help").stdout
    heads = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["Arguments:", "What is written:", "What may change a number:", "How it is proved:", "To neox:",
                     "To orbax and maxtext:", "Mending:", "Several hosts:", "Options:"]  # fmt: skip
    assert all(shown.count(f"  {one.flag} ") == 1 for one in OPTIONS.values())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("a",), "1 paths are named"),
        (("a", "b"), "no target format is named"),
        (("a", "b", "--to", "gguf"), "Input should be 'hf'"),
        (("a", "b", "--to", "hf", "--shard-size", "big"), "'big' is no size"),
        (("a", "b", "--to", "hf", "--tp", "2"), "--tp is for neox, not hf"),
        (("a", "b", "--to", "neox", "--tp", "0"), "--tp: Input should be greater than 0"),
        (("a", "b", "--to", "hf", "--shard-size", "-5"), "--shard-size: Input should be greater than 0"),
        (("--merge", "a", "b", "--out", "c", "--dtype", "float16"), "--dtype is for a conversion, not for --merge"),
        (("--repair", "a", "--from", "b", "--damaged"), "--damaged is for a conversion and --merge, not for --repair"),
        (("--merge", "--repair", "a", "--out", "c"), "--merge and --repair are two things"),
        (("a", "b", "--to", "neox", "--adam", "1,2"), "is no LR,BETA1,BETA2,EPS,DECAY"),
        (("--merge", "a", "b"), "no folder is named for the result"),
        (("--repair", "a"), "a target and its source are needed"),
        (("none", "b", "--to", "hf"), "none does not exist"),
        (("", "b", "--to", "hf"), "a path is empty"),
        (("a", "b", "--to", "hf", "--scan-axis", "0"), "--scan-axis is for maxtext"),
        (("a", "b", "--to", "hf", "--from", "c"), "--from is for --repair"),
    ],
)
def test_wrong_usage_is_three_lines_and_exit_code_2(arguments, what):
    from typer.testing import CliRunner

    from pretrace.cli.main import app
    from pretrace.errors import PretraceError

    said = CliRunner().invoke(app, ["convert", *arguments])
    assert isinstance(said.exception, PretraceError)
    assert what in str(said.exception)
    assert said.exception.exit_code == 2
