"""What the two sides are asked, by whom, and what is said when somebody was not asked."""

import json
import shutil

import numpy as np
import pytest

import pretrace.checkpoint.config as config
from assets import checkpoint_cases, unpacked
from convert_lab import SIZES, request, settings, weights
from pretrace.checkpoint import ArraysView, layout_of, plain_options, write_layout
from pretrace.checkpoint.config import spec_of
from pretrace.convert.residuals import FILE, beyond_rounding
from pretrace.convert.run import convert
from pretrace.convert.source import open_source
from pretrace.convert.words import result_lines
from pretrace.errors import PretraceError
from pretrace.model.presets import llama

CASES = checkpoint_cases()
STORIES = unpacked("models") / "models" / "stories260k-hf"


def run(source, target, to="hf", **changes):
    return convert(str(source), target, request(to), settings(**changes))


def copy_of(case, tmp_path, **changes):
    """A case with some values of its config.json changed, or left out where the value is None."""
    target = tmp_path / "source"
    shutil.copytree(CASES / case, target)
    about = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps({k: v for k, v in about.items() if v is not None}))
    return target


@pytest.mark.parametrize("to", ["hf", "neox"])
def test_a_configuration_read_otherwise_than_transformers_reads_it_is_caught(to, monkeypatch, tmp_path):
    rotary = config._rotary
    monkeypatch.setattr(config, "_rotary", lambda c: (1.0, rotary(c)[1]))  # of both sides: the target agrees
    with pytest.raises(PretraceError, match=r"proof failed.*logits of the source by transformers") as error:
        run(CASES / "good_neox", tmp_path / "out", to)
    assert "config.json" in error.value.mend
    assert not list(tmp_path.iterdir())


def test_a_neox_configuration_without_rotary_settings_is_what_transformers_makes_of_it(tmp_path):
    source = copy_of("good_neox", tmp_path, rotary_pct=None, rope_parameters=None, rotary_emb_base=None)
    said = json.loads((source / "config.json").read_text())
    assert spec_of(said).rotary_pct == 0.25
    made = run(source, tmp_path / "out")
    assert [d.by.split()[0] for d in made.proof.distances if d.side == "source"] == ["transformers'", "transformers"]


def test_a_source_that_transformers_refuses_is_said_not_to_have_been_asked(tmp_path):
    source = copy_of("good_llama", tmp_path, attention_dropout="none")
    made = run(source, tmp_path / "out", "dcp")
    (said,) = (one for one in made.proof.not_run if "by transformers" in one.check)
    assert "attention_dropout" in said.why
    with pytest.raises(PretraceError, match=r"proof failed.*transformers does not load it.*attention_dropout"):
        run(source, tmp_path / "hf")  # the target would carry it along


def test_where_logits_were_not_asked_the_proof_is_called_one_in_part(tmp_path):
    lines = list(result_lines(run(CASES / "good_llama", tmp_path / "part", logits=False)))
    assert lines[0].startswith("PROVED in part  ")
    assert any(line.startswith("  Not checked: logits of both sides and loss on real text") for line in lines)
    whole = run(CASES / "good_llama", tmp_path / "whole")
    assert next(result_lines(whole)).startswith("PROVED  ")
    assert whole.proof.summary()["whole"] is True


def test_a_framework_that_computes_something_else_is_measured_as_it_does(tmp_path):
    made = run(CASES / "good_gpt2_tied", tmp_path / "out", "nanogpt")  # gelu_new; nanoGPT has the exact GELU
    (said,) = (f for f in made.proof.findings if f.code == "framework")
    assert said.evidence["activation"] == "gelu"
    assert said.evidence["max_ulp"] > 100  # rounding alone is below 64
    layout = next(d for d in made.proof.distances if d.by.startswith("nanoGPT"))
    assert layout.by == "nanoGPT (second reading, as the model is)"
    assert layout.max_ulp < 64


def test_a_query_that_bfloat16_rounds_is_no_wrong_layout(tmp_path):
    spec = llama(**SIZES, n_kv_heads=2, d_ff=40)  # head_dim 8: divided by sqrt(8), each value is rounded to 8 bits
    ours = {n: (x.view(np.uint32) >> 16).astype(np.uint16) for n, x in weights(spec).items()}
    view = ArraysView(ours, dtypes=dict.fromkeys(ours, "bfloat16"))
    (tmp_path / "hf").mkdir()
    write_layout(layout_of("hf", view, spec, plain_options(view)), tmp_path / "hf")
    made = run(tmp_path / "hf", tmp_path / "maxtext", "maxtext")
    assert made.proof.logits_max_ulp < 64
    assert made.proof.rounded_layout.max_ulp > 10_000  # what MaxText reads, without the values beside
    assert 0 < made.proof.rounded_layout.kl < 0.01
    assert any("does not see what is kept beside" in line for line in result_lines(made))
    back = run(tmp_path / "maxtext", tmp_path / "back")
    assert back.proof.logits_max_ulp < 64
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (
        tmp_path / "hf" / "model.safetensors"
    ).read_bytes()


def test_values_beside_a_checkpoint_that_was_trained_on_are_not_put_back(tmp_path):
    run(STORIES, tmp_path / "maxtext", "maxtext", logits=False)
    run(STORIES, tmp_path / "later", "maxtext", logits=False)
    with np.load(tmp_path / "maxtext" / FILE) as arrays:
        old = dict(arrays)
    name = next(key for key in old if ".value." in key)
    old[name] = old[name] * np.float32(1.01)  # the query of another step
    np.savez(tmp_path / "later" / FILE, **old)
    assert open_source(tmp_path / "maxtext").restored
    later = open_source(tmp_path / "later")
    assert not later.restored
    (note,) = later.notes
    assert "the weights moved on" in note


def test_what_float16_cannot_hold_as_a_normal_number_is_rounded_to_a_multiple_of_the_least():
    was, scale = np.float16([1e-4, 3e-5, 0.25]), np.sqrt(128)
    stored = (was.astype(np.float64) / scale).astype(np.float16)
    came = (stored.astype(np.float64) * scale).astype(np.float16)
    assert abs(float(came[0]) - float(was[0])) / 2**-24 > 2  # more than two units in the last place
    assert not beyond_rounding(was, came, "float16", 0.0)
    assert beyond_rounding(np.float16([1e-3]), np.float16([1.1e-3]), "float16", 0.0)
