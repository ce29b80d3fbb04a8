"""Flat binaries: llm.c against its Hugging Face twin, llama2.c against weights written by hand in its order."""

import struct

import numpy as np
import pytest

from assets import checkpoint_cases
from pretrace.checkpoint import canonical, open_state, read_all, survey


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
