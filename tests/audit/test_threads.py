"""Public reports on checkpoint files and their conversion, each as a small case named after its thread."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from layouts import tiny_spec, tiny_weights
from pretrace.audit import checkpoint, series
from pretrace.checkpoint import ArraysView, write_hf
from pretrace.compare.steps import steps_in
from pretrace.convert.source import open_source
from pretrace.errors import PretraceError


def test_pythia_205_steps_that_hold_the_last_ones_weights_are_named(tmp_path):
    """Six steps, two of them, step 0 included, copies of the last."""
    walk = np.random.default_rng(0).normal(size=(6, 4, 50)).astype(np.float32).cumsum(0)
    walk[0] = walk[3] = walk[5]
    for step, state in enumerate(walk):
        (tmp_path / f"step{1000 * step}").mkdir()
        save_file({"w": state}, tmp_path / f"step{1000 * step}" / "model.safetensors")
    (finding,) = [f for f in series(steps_in(tmp_path)).findings if f.severity == "error"]
    assert (finding.code, finding.evidence) == ("trajectory-same", {"steps": [0, 3000], "same_as": 5000})


def test_litgpt_1727_a_tied_head_that_was_trained_beside_a_stale_embedding_is_named(tmp_path):
    """The head was updated, the embedding was not; the configuration calls them one."""
    spec = tiny_spec("gpt2")
    assert spec.tied_head
    write_hf(tmp_path, ArraysView(tiny_weights(spec)), spec)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + np.float32(0.01)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (finding,) = [f for f in checkpoint(str(tmp_path)).findings if f.severity == "error"]
    assert finding.code == "tied-differ"
    with pytest.raises(PretraceError, match="holds another head"):
        open_source(tmp_path)
