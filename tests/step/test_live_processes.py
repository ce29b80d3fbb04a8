"""P real processes that share W ranks against one process that plays all of them: the same bits, the same outcome."""

import pytest
import torch

import live
from live import ours
from tiny import DIRECT, EXACT, RING, TREE

pytestmark = pytest.mark.distributed
DDP = {"kind": "ddp", "cap_mb": 0.004, "first_cap_mb": 0.004, "restart": "anew"}
NCCL = {"kind": "nccl_ring", "sum_dtype": "wire", "rings": [[0, 1, 2, 3], [2, 0, 3, 1]], "chunk_bytes": 256}
WIDE = {**RING, "sum_dtype": "float32"}
LOCAL = {"max_norm": 1e-3, "scope": "local", "norm": "flat", "rule": "deepspeed", "eps": 1e-6}


def hows():
    base = {"world_size": 4, "micro_batch": 1, "reduction.buckets": DDP}
    orders = [{**base, "reduction.order": order} for order in (RING, DIRECT, TREE, NCCL)]
    wires = [
        {**base, "reduction.order": order, "reduce_dtype": "bfloat16", "grad_accum_steps": 2} for order in (RING, WIDE)
    ]
    rules = [{**base, "loss.denominator": d} for d in ("global_tokens", "rank_step_tokens", "sequence_mean")]
    local = {**base, "clip": LOCAL}
    return [{"changes": c, "steps": 3, "ragged": True} for c in [*orders, *wires, *rules, local]]


def dealt(steps):
    """8 micro-batches an update, summed exactly, dealt as W x gas."""
    pairs = [(w, 8 // w) for w in (1, 2, 4, 8)]
    changes = [{**EXACT, "micro_batch": 1, "world_size": w, "grad_accum_steps": g} for w, g in pairs]
    return [{"changes": c, "steps": steps, "ragged": False} for c in changes]


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_gives_the_bits_of_one(processes, tmp_path):
    exact = [how for how in dealt(steps=3) if how["changes"]["world_size"] % processes == 0]
    both = hows() + exact
    shared = live.launch(processes, "live.ours", both, tmp_path)
    for how, (bits, outcome) in zip(both, shared):
        alone, expected = ours.run(0, 1, how)
        assert torch.equal(bits, alone), how
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        assert (outcome.grad_norm, outcome.clip_coefficient) == (expected.grad_norm, expected.clip_coefficient)
        assert outcome.logits == expected.logits
    assert len({bits.numpy().tobytes() for bits, _ in shared[len(hows()) :]}) == 1


@pytest.mark.slow
def test_exact_sums_have_one_hash_after_50_steps_whatever_w_gas_and_p(tmp_path):
    hashes = {ours.run(0, 1, how)[0].numpy().tobytes() for how in dealt(50)}
    for processes in (2, 4):
        folder = tmp_path / str(processes)
        folder.mkdir()
        some = [how for how in dealt(50) if how["changes"]["world_size"] % processes == 0]
        hashes |= {bits.numpy().tobytes() for bits, _ in live.launch(processes, "live.ours", some, folder)}
    assert len(hashes) == 1
