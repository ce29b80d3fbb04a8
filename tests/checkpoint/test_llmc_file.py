"""Flat binaries: llm.c against its Hugging Face twin, llama2.c against weights written by hand in its order."""

import shutil
import struct

import numpy as np
import pytest

from assets import checkpoint_cases
from layouts import tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    canonical_state,
    layout_of,
    open_state,
    plain_options,
    read_all,
    survey,
    write_layout,
)


def test_llmc_is_its_hugging_face_twin_bit_for_bit():
    with (
        open_state(checkpoint_cases() / "good_llmc") as flat,
        open_state(checkpoint_cases() / "good_gpt2_tied") as twin,
    ):
        a, b = canonical(flat), canonical(twin)
        assert a.names() == b.names()
        assert all((read_all(a, name) == read_all(b, name)).all() for name in a.names())


def test_a_header_that_lies_about_its_layers_is_a_wrong_size():
    (finding,) = survey(checkpoint_cases() / "llmc_layer_count").findings
    assert (finding.code, finding.evidence["present"]) == ("size", 350336)
    assert "header[4]" in finding.where


DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, SEQ = 8, 12, 2, 2, 1, 10, 4


def weights(rng):
    kv = DIM // HEADS * KV
    shapes = {
        "att": (LAYERS, DIM),
        "ffn": (LAYERS, DIM),
        "norm": (DIM,),
        "tok": (VOCAB, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, kv, DIM),
        "wv": (LAYERS, kv, DIM),
        "wo": (LAYERS, DIM, DIM),
        "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM),
        "out": (VOCAB, DIM),
        "cos": (SEQ, 2),
        "sin": (SEQ, 2),
    }
    return {name: rng.standard_normal(shape).astype("<f4") for name, shape in shapes.items()}


def version_1(w, shared):
    head = struct.pack("<IiiiiiiiiB", 0x616B3432, 1, DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, SEQ, shared)
    order = ["att", "ffn", "norm", "tok", "wq", "wk", "wv", "wo", "w1", "w2", "w3"] + ["out"] * (not shared)
    return head.ljust(256, b"\0") + b"".join(w[k].tobytes() for k in order)


def version_0(w, shared):
    head = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB if shared else -VOCAB, SEQ)
    order = ["tok", "att", "wq", "wk", "wv", "wo", "ffn", "w1", "w2", "w3", "norm", "cos", "sin"] + ["out"] * (
        not shared
    )
    return head + b"".join(w[k].tobytes() for k in order)


@pytest.mark.parametrize("layout", [version_0, version_1])
@pytest.mark.parametrize("shared", [True, False])
def test_llama2c_is_read_and_its_rotary_pairs_become_half_split(layout, shared, tmp_path):
    w = weights(np.random.default_rng(0))
    (tmp_path / "model.bin").write_bytes(layout(w, shared))
    with open_state(tmp_path) as view:
        assert view.format == "llama2.c"
        assert ("output.weight" in view.names()) == (not shared)
        assert (read_all(view, "layers.1.feed_forward.w2.weight") == w["w2"][1]).all()
        ours = canonical(view)
        pairs = w["wq"][1].reshape(HEADS, 2, 2, DIM)  # head, pair, member
        assert (read_all(ours, "blocks.1.attn.q.weight") == pairs.transpose(0, 2, 1, 3).reshape(DIM, DIM)).all()
        assert ours.metadata()["naming"].unmatched == ()


@pytest.mark.parametrize("change", [1, -1])
def test_a_byte_too_many_or_too_few_is_refused(change, tmp_path):
    data = version_1(weights(np.random.default_rng(0)), True)
    (tmp_path / "model.bin").write_bytes(data + b"\0" if change > 0 else data[:-1])
    assert [f.code for f in survey(tmp_path).findings] == ["size"]


def with_state(folder, *, step=7, processes=1, masters=False, cut=0, shuffle=0):
    """A model with an embedding of 128 rows and the state that llm.c keeps of it: m is 1, v is 2, masters are 3."""
    spec = tiny_spec("gpt2", vocab_size=128, n_layers=1)
    view = ArraysView(tiny_weights(spec), metadata={"step": step})
    write_layout(layout_of("llmc", view, spec, plain_options(view)), folder)
    n = (folder / f"model_{step:08d}.bin").stat().st_size // 4 - 256
    header = np.zeros(256, "<i4")
    header[[0, 1, 2, 4, 5, 10]] = 20240527, 1, processes, masters, shuffle, step
    data = header.tobytes() + b"".join(np.full(n, k + 1, "<f4").tobytes() for k in range(2 + masters))
    (folder / f"state_{step:08d}_00000.bin").write_bytes(data[: len(data) - cut] + b"x" * shuffle)
    return folder


@pytest.mark.parametrize("masters", [False, True])
def test_the_state_beside_a_model_is_read_in_the_order_of_its_parameters(masters, tmp_path):
    with open_state(with_state(tmp_path, masters=masters, shuffle=9)) as view:
        ours = canonical_state(view)
        assert ours.metadata()["optimizer_step"] == 7
        assert (read_all(ours, "optimizer.exp_avg_sq.blocks.0.mlp.up.weight") == 2).all()
        assert ours.info("optimizer.exp_avg.embed.weight").shape == (128, 64)
        # Masters are there as stored; beside fp32 weights they say nothing new.
        assert ("optimizer.fp32.transformer.ln_f.bias" in view.names()) == masters
        assert not any(name.startswith("optimizer.fp32.") for name in ours.names())


def test_a_state_that_is_cut_or_of_several_processes_is_refused(tmp_path):
    for name, changes, code in (("a", {"cut": 4}, "size"), ("b", {"processes": 2}, "header-version")):
        (tmp_path / name).mkdir()
        assert [f.code for f in survey(with_state(tmp_path / name, **changes)).findings] == [code]


def test_states_of_several_processes_leave_the_model_readable(tmp_path):
    state = with_state(tmp_path, processes=2) / "state_00000007_00000.bin"
    shutil.copy(state, tmp_path / "state_00000007_00001.bin")
    seen = survey(tmp_path)
    assert [(f.code, f.severity) for f in seen.findings] == [("files-optimizer", "warning")]
    assert read_all(canonical(seen.view), "embed.weight").shape == (128, 64)
