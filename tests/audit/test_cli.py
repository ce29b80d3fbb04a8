"""The verb: its first line, keys, exit codes, pages and files."""

import csv
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assets import checkpoint_cases
from pretrace.cli.main import app


def run(*arguments):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    return result.exit_code, result.stdout


def test_a_sound_checkpoint_passes_and_says_what_was_not_checked():
    code, text = run(checkpoint_cases() / "good_neox")
    assert code == 0
    assert text.startswith("PASS       safetensors checkpoint, 191,040 parameters in 40 tensors, ")
    assert "Not checked: layouts against a reference" in text


@pytest.mark.parametrize("case", ["good_neox_tp2", "good_llmc", "good_neox"])
def test_settings_of_any_framework_say_which_tensors_should_be_there(case):
    _, text = run(checkpoint_cases() / case)
    assert "keys" not in text
    assert "against the configuration" not in text


def test_a_fault_is_an_error_with_its_mend():
    code, text = run(checkpoint_cases() / "quarter_rows")
    assert code == 1
    assert "error    zero-region  columns 25% to 100% (slices 1 to 3 of 4 equal ones) of 14 tensors are zero" in text
    assert "mend         Check that all hosts saw one file system" in text


@pytest.mark.parametrize("case", ["nan_one", "trajectory_same_step", "orbax_host0_only"])
def test_the_json_object_has_the_keys_that_scripts_rely_on(case):
    code, text = run(checkpoint_cases() / case, "--json")
    found = json.loads(text)
    assert (code, found["outcome"]) == (1, "fail")
    assert {"code", "severity", "what", "where", "evidence", "mend"} == set(found["findings"][0])
    assert {"check", "why"} == set(found["checks_not_run"][0])


@pytest.mark.parametrize("case", ["quarter_rows", "trajectory_final_shard", "header_overlap"])
def test_the_page_stands_alone(tmp_path, case):
    run(checkpoint_cases() / case, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "FAIL" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_statistics_are_printed_and_saved(tmp_path):
    _, text = run(checkpoint_cases() / "good_llama", "--stats", "--stats-csv", tmp_path / "s.csv")
    assert "model.layers.2.mlp.up_proj.weight" in text
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert len(rows) == 30
    assert rows[0]["name"] == "lm_head.weight"
    assert float(rows[0]["std"]) > 0


def test_a_fingerprint_is_written_and_taken_as_reference(tmp_path):
    cases = checkpoint_cases()
    assert run(cases / "good_neox", "--fingerprint", tmp_path / "f.json")[0] == 0
    assert run(cases / "good_neox", "--reference", tmp_path / "f.json")[0] == 0
    code, text = run(cases / "bit_flip_mantissa", "--reference", tmp_path / "f.json")
    assert code == 1
    assert "gpt_neox.layers.1.mlp.dense_h_to_4h.weight" in text
    compared = CliRunner().invoke(app, ["compare", str(tmp_path / "f.json"), str(cases / "bit_flip_mantissa")])
    assert compared.exit_code == 1
    assert compared.stdout.startswith("Different: 1 of 40 tensors.")


def test_what_is_no_checkpoint_is_wrong_usage(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    out = subprocess.run(
        [sys.executable, "-c", "from pretrace.cli.main import main; main()", "audit", str(tmp_path / "notes.txt")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert out.returncode == 2
    assert "no checkpoint of a known format here" in out.stderr
    assert f"where   {tmp_path / 'notes.txt'}\n" in out.stderr


def test_auditing_imports_neither_torch_nor_jax_nor_transformers():
    good = checkpoint_cases() / "good_neox"
    code = (
        "import sys; from pretrace.cli.main import app; from typer.testing import CliRunner;"
        f"CliRunner().invoke(app, ['audit', {str(good)!r}]);"
        "print([m for m in ('torch', 'jax', 'transformers', 'numba', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
