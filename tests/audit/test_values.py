"""Checks on values: what each one sees, by hand, and what it leaves alone."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert_lab import READ, SPECS, stored, weights
from pretrace import audit
from pretrace.checkpoint import read_all


def sound(seed=1, layers=4):
    rng = np.random.default_rng(seed)
    arrays = {"embed.weight": rng.normal(0, 0.02, (96, 32)), "head.weight": rng.normal(0, 0.02, (96, 32))}
    for i in range(layers):
        arrays |= {
            f"blocks.{i}.norm1.weight": 1 + rng.normal(0, 0.1, 32), f"blocks.{i}.attn.q.weight": rng.normal(0, 0.02, (32, 32)),
            f"blocks.{i}.attn.out.weight": rng.normal(0, 0.02, (32, 32)),
            f"blocks.{i}.mlp.up.weight": rng.normal(0, 0.02, (128, 32)),
            f"blocks.{i}.mlp.up.bias": rng.normal(0, 0.01, 128),
        }  # fmt: skip
    return {name: value.astype(np.float32) for name, value in arrays.items()}


def findings(tmp_path, arrays):
    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, tmp_path / "model.safetensors")
    return {f.code: f for f in audit.checkpoint(tmp_path).findings}


def test_sound_values_are_left_alone(tmp_path):
    assert findings(tmp_path, sound()) == {}


UP = "blocks.2.mlp.up.weight"


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        (lambda w: np.where(np.arange(w.size).reshape(w.shape) == 77, 700, w), "stats-spike", "error"),
        (lambda w: np.where(np.arange(w.size).reshape(w.shape) == 77, 2.5, w), "stats-spike", "warning"),
        (lambda w: np.where(np.arange(w.size).reshape(w.shape) == 77, np.inf, w), "nonfinite", "error"),
        (lambda w: w * 0 + np.float32(0.5), "stats-constant", "error"),
        (lambda w: w * 0, "zero-region-all", "error"),
        (lambda w: w * 1e-38, "stats-subnormal", "warning"),
        (lambda w: w * 16, "stats-scale", "warning"),
    ],
)
def test_one_damaged_matrix_is_named(tmp_path, change, code, severity):
    found = findings(tmp_path, {**sound(), UP: change(sound()[UP]).astype(np.float32)})
    assert found[code].severity == severity
    assert UP in found[code].where


def test_a_few_tiny_values_beside_ordinary_ones_are_no_spike_of_the_ordinary(tmp_path):
    arrays = sound()
    bias = np.full(32, 0.05, np.float32)
    bias[7] = 5e-7  # a lane that nothing trained

    assert "stats-spike" not in findings(tmp_path, {**arrays, "blocks.2.norm1.bias": bias})


def test_a_damaged_range_is_told_from_a_flipped_bit(tmp_path):
    arrays = sound()
    arrays[UP].reshape(-1)[1838:1856] = np.linspace(1e4, 5e4, 18)  # metaseq#122: 18 values of one shard
    finding = findings(tmp_path, arrays)["stats-spike"]
    assert finding.evidence["flat_index"] == list(range(1838, 1856))
    assert "a damaged range of the file" in finding.what


def test_float16_that_was_clipped_is_said(tmp_path):
    arrays = {name: value.astype(np.float16) for name, value in sound().items()}
    arrays[UP] = np.clip(arrays[UP].astype(np.float32) * 2e6, -65504, 65504).astype(np.float16)
    assert findings(tmp_path, arrays)["stats-saturated"].where == UP


def test_norms_left_at_one_beside_trained_ones(tmp_path):
    arrays = sound()
    arrays["blocks.1.norm1.weight"][:] = 1
    assert "blocks.1.norm1.weight" in findings(tmp_path, arrays)["stats-norm-untrained"].where


def test_a_layer_that_is_a_copy(tmp_path):
    arrays = sound()
    for name in [n for n in arrays if n.startswith("blocks.1.")]:
        arrays[name] = arrays[name.replace("blocks.1.", "blocks.3.")]
    finding = findings(tmp_path, arrays)["duplicate-layer"]
    assert finding.what == "layer 3 is a copy of layer 1, bit for bit (5 of 5 tensors)"


def test_two_matrices_with_one_buffer(tmp_path):
    arrays = sound()
    arrays["blocks.0.attn.q.weight"] = arrays["blocks.0.attn.out.weight"]
    assert findings(tmp_path, arrays)["duplicate-tensor"].severity == "error"


def test_two_output_biases_of_a_parallel_residual_may_be_equal(tmp_path):
    arrays = sound()
    bias = np.random.default_rng(3).normal(size=32).astype(np.float32)
    arrays |= {"blocks.0.attn.out.bias": bias, "blocks.0.mlp.down.bias": bias}
    assert "duplicate-tensor" not in findings(tmp_path, arrays)


def test_a_missing_tensor_and_an_odd_dtype(tmp_path):
    arrays = sound()
    del arrays["blocks.1.mlp.up.bias"]
    arrays["blocks.3.attn.q.weight"] = arrays["blocks.3.attn.q.weight"].astype(np.float16)
    found = findings(tmp_path, arrays)
    assert found["keys-missing"].where == "blocks.1.mlp.up.bias"
    assert found["dtype-mixed"].where == "blocks.3.attn.q.weight"


def test_a_fingerprint_as_reference_names_the_changed_tensor(tmp_path):
    from pretrace.checkpoint import open_state
    from pretrace.compare.fingerprint import fingerprint

    save_file(sound(), tmp_path / "model.safetensors")
    with open_state(tmp_path) as view:
        reference = fingerprint(view, "x")
    assert audit.checkpoint(tmp_path, reference=reference).findings == ()
    arrays = sound()
    arrays[UP][0, 0] += np.float32(1e-7)
    save_file(arrays, tmp_path / "model.safetensors")
    (finding,) = audit.checkpoint(tmp_path, reference=reference).findings
    assert (finding.code, finding.where) == ("reference-differs", UP)


def test_what_is_equal_in_all_layers_was_set_and_not_copied(tmp_path):
    arrays = sound()
    fixed = np.arange(64, dtype=np.float32).reshape(8, 8)
    arrays |= {f"blocks.{i}.mixer.A_log": fixed for i in range(4)}
    assert "duplicate-layer" not in findings(tmp_path, arrays)


def test_a_family_that_no_table_knows_in_full_is_not_accused(tmp_path):
    import json

    arrays = {}
    for i in range(3):
        rng = np.random.default_rng(i)
        for kind, shape in (("self_attn.q_proj", (32, 32)), ("self_attn.k_proj", (32, 32)), ("mlp.fc1", (64, 32))):
            arrays[f"model.layers.{i}.{kind}.weight"] = rng.normal(0, 0.02, shape).astype(np.float32)
    config = {"model_type": "phi", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(arrays, tmp_path / "model.safetensors")
    found = audit.checkpoint(tmp_path)
    assert found.findings == ()
    assert any("keys" in check.check for check in found.checks_not_run)


def test_the_value_of_masked_scores_is_infinite_in_float16_and_no_damage(tmp_path):
    """Pythia's files of transformers before 4.3x hold -1e9 as a buffer of each layer, in float16."""
    table = next(t for t in READ if t.name == "hf gpt_neox")
    view = stored(SPECS["gpt_neox"], table, weights(SPECS["gpt_neox"]))
    arrays = {name: read_all(view, name).astype(np.float16) for name in view.names()}
    with np.errstate(over="ignore"):
        arrays |= {f"gpt_neox.layers.{i}.attention.masked_bias": np.array(-1e9).astype(np.float16) for i in range(3)}
    save_file(arrays, tmp_path / "model.safetensors")
    found = audit.checkpoint(tmp_path)
    assert "nonfinite" not in " ".join(f.code for f in found.findings)
    arrays["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"][3, 5] = np.inf
    assert findings(tmp_path, arrays)["nonfinite-overflow"].where.startswith("gpt_neox.layers.1.mlp")
