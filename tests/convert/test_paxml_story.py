"""A Paxml-style GPT-3 run, written at step 4000 with its Adam state, goes on after conversion as if nothing had happened.

The Paxml folder is written by hand, variable by variable, as the conversion script of MaxText reads it
(convert_gpt3_ckpt_from_paxml.py, e591f30c): no table of pretrace takes part.
"""

import numpy as np
import pytest
import torch

from convert_lab import request, settings
from paxml_lab import PLAN, read, run_at_4000, write_paxml
from pretrace.checkpoint import read_all
from pretrace.checkpoint.optimizer_names import weights_of
from pretrace.convert.run import convert
from pretrace.convert.source import open_source
from pretrace.model.decoder import Decoder
from pretrace.model.state import load, snapshot
from pretrace.score.likelihood import held_out_loss
from pretrace.step.execute import execute
from pretrace.step.state import begin


def state_of(folder):
    """Model and optimizer as they stand in a checkpoint."""
    source = open_source(folder)
    assert source.step == 4000
    model = Decoder(source.model.spec)
    load(model, weights_of(source.view))
    state = begin(PLAN, model)
    for slot in ("exp_avg", "exp_avg_sq"):
        for name, tensor in state.optimizer.tensors[slot].items():
            tensor.copy_(torch.from_numpy(read_all(source.view, f"optimizer.{slot}.{name}")))
    state.optimizer.step = source.view.metadata()["optimizer_step"]
    return state


SLOW = pytest.mark.slow
WAYS = [{}, pytest.param({"scan_axis": 0}, marks=SLOW), {"scan_axis": None, "fused_qkv": False, "ocdbt": False},
        pytest.param({"ocdbt": False}, marks=SLOW)]  # fmt: skip


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_the_next_update_and_the_loss_are_those_of_the_run_that_was_never_converted(how, tmp_path):
    live = run_at_4000()
    write_paxml(tmp_path / "paxml", live)
    declared = held_out_loss(live.model, [read(range(100, 108))]).nats_per_token
    np.save(tmp_path / "ids.npy", np.tile(np.arange(48), 4))
    made = convert(
        str(tmp_path / "paxml"),
        tmp_path / "maxtext",
        request("maxtext", **how),
        settings(probe=str(tmp_path / "ids.npy")),
    )
    proof = made.proof.summary()
    assert proof["round_trip"] == "bitwise"
    assert {d.by for d in made.proof.distances} == {
        "pretrace's decoder", "MaxText's GPT-3 (second reading)", "Paxml's GPT-3 (second reading)"
    }  # fmt: skip
    assert proof["probe_loss"] == proof["source_loss"] < 1.0  # ln(48) = 3.87 would be guessing
    converted = state_of(tmp_path / "maxtext")
    assert held_out_loss(converted.model, [read(range(100, 108))]).nats_per_token == declared
    before = snapshot(live.model)
    for state in (live, converted):
        execute(PLAN, state, read, step=4000)
    assert live.optimizer.step == converted.optimizer.step == 4001
    after = snapshot(live.model)
    assert any((before[n] != after[n]).any() for n in after)
    # Norm scales are stored as their distance from 1, which is exact between 1/2 and 2.
    same = snapshot(converted.model)
    assert all((after[n] == same[n]).all() for n in after)
    for slot in ("exp_avg", "exp_avg_sq"):
        pairs = zip(live.optimizer.tensors[slot].values(), converted.optimizer.tensors[slot].values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
