"""The verb: what it prints, its keys and its exit codes; the page it writes."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assets import checkpoint_cases
from pretrace.cli.main import app
from pretrace.errors import PretraceError


def run(*arguments):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    return result.exit_code, result.stdout


def test_the_same_checkpoint_is_said_to_be_the_same():
    good = checkpoint_cases() / "good_neox"
    assert run(good, good) == (0, "Same: 40 tensors, 191,040 elements, every bit equal.\n")


def test_a_difference_names_the_tensor_and_the_place():
    cases = checkpoint_cases()
    code, text = run(cases / "good_neox", cases / "bit_flip_mantissa")
    assert code == 1
    assert text.startswith("Different: 1 of 40 tensors.")
    assert "bitwise equal all but 1 of 191,040" in text
    assert "gpt_neox.layers.1.mlp.dense_h_to_4h.weight" in text


def test_the_json_object_has_the_keys_that_scripts_rely_on():
    cases = checkpoint_cases()
    code, text = run(cases / "good_neox", cases / "swapped_layers", "--base", cases / "good_init_step0", "--json")
    found = json.loads(text)
    assert code == 1
    assert {
        "p_cos",
        "l2",
        "rel_l2",
        "max_abs",
        "numel",
        "bitwise_equal",
        "only_in_a",
        "only_in_b",
        "tensors",
        "u_cos",
    } <= set(found)
    tensor = next(t for t in found["tensors"] if t["name"] == "gpt_neox.layers.1.attention.query_key_value.weight")
    assert {"canonical", "shape", "p_cos", "l2", "rel_l2", "max_abs", "bitwise_equal", "move", "note", "u_cos"} <= set(
        tensor
    )
    assert tensor["canonical"] == "blocks.1.attn.{q,k,v}.weight"
    assert tensor["shape"] == [192, 64]


@pytest.mark.parametrize("case", ["qkv_not_interleaved", "nan_one", "duplicated_layer"])
def test_the_page_stands_alone(tmp_path, case):
    cases = checkpoint_cases()
    page = tmp_path / "page.html"
    run(cases / "good_neox", cases / case, "--html", page)
    text = page.read_text()
    assert "Different: " in text
    assert "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_comparing_imports_neither_torch_nor_jax_nor_transformers():
    good = checkpoint_cases() / "good_neox"
    code = (
        "import sys; from pretrace.cli.main import app; from typer.testing import CliRunner;"
        f"CliRunner().invoke(app, ['compare', {str(good)!r}, {str(good)!r}]);"
        "print([m for m in ('torch', 'jax', 'transformers', 'numba', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_a_folder_of_steps_against_one_checkpoint_names_a_step_to_take(tmp_path):
    good = checkpoint_cases() / "good_neox"
    for step in (1, 2):
        (tmp_path / f"step{step}").symlink_to(good)
    for pair in ((tmp_path, good), (good, tmp_path)):
        result = CliRunner().invoke(app, ["compare", *map(str, pair)])
        assert isinstance(result.exception, PretraceError)
        assert "is a folder of 2 steps" in result.exception.what
        assert "step2" in result.exception.mend


def test_a_pipe_is_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "pipe"), str(checkpoint_cases() / "good_neox")])
    assert "not a regular file" in result.exception.what
