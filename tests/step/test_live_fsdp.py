"""W real gloo processes of FSDP2 and FSDP1 against one process of ours: the same bits after every step."""

import pytest
import torch

import live
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import flat, gpt, plan, read

pytestmark = pytest.mark.distributed
BASE = {
    "kind": "fsdp2",
    "compute": "float32",
    "wire": "float32",
    "gas": 1,
    "micro": 2,
    "clip": None,
    "steps": 10,
    "orig": True,
}
AVG = {"where": "wire_post", "op": "div", "by": "world_size"}  # gloo divides after the sum, in the wire dtype
SPLIT = [{"where": "wire_pre", "op": "div", "by": "root_low"}, {"where": "wire_post", "op": "div", "by": "root_high"}]


def plan_of(world, how):
    two = how["kind"] == "fsdp2"
    units = ["blocks.*"]
    buckets = (
        {"kind": "fsdp2", "units": units}
        if two
        else {"kind": "fsdp1", "units": units, "sharded": how["kind"] == "full", "use_orig_params": how["orig"]}
    )
    scaling = [AVG] if two else SPLIT
    # FSDP2 accumulates in the wire dtype, FSDP1 in the dtype of the gradient
    accum = how["wire"] if two else how["compute"]
    return plan(
        world_size=world, grad_accum_steps=how["gas"], micro_batch=how["micro"], reduce_dtype=how["wire"], accum_dtype=accum,
        reduction__buckets=buckets, reduction__scaling=scaling, reduction__scaling_first=scaling,
        reduction__collective="all_reduce" if how["kind"] == "none" else "reduce_scatter",
        kernels__compute_dtype=how["compute"], kernels__mixed="cast", optimizer__kernel="torch_loop",
        clip=clip_of(how),
    )  # fmt: skip


def clip_of(how):
    if how["clip"] is None:
        return None
    scope, norm = {"fsdp2": ("shards", "tensors"), "full": ("shards", "tensors"), "none": ("global", "tensors")}[
        how["kind"]
    ]
    return {"max_norm": how["clip"], "scope": scope, "norm": norm, "rule": "torch", "eps": 1e-6}


def ours(world, how):
    of, model = plan_of(world, how), gpt(d=16, layers=2)
    state, seen = begin(of, model), []
    for step in range(how["steps"]):
        execute(of, state, read, step=step)
        seen.append(flat(model).clone())
    return seen


def first_difference(real, virtual):
    return next((s for s, (a, b) in enumerate(zip(real, virtual)) if not torch.equal(a, b)), None)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_one_process_gives_the_bits_of_real_fsdp(world, tmp_path):
    hows = [
        {**BASE, "clip": 0.05},
        {**BASE, "kind": "full", "clip": 0.05},
        {**BASE, "kind": "full", "clip": 0.05, "orig": False},
        {**BASE, "kind": "none", "clip": 0.05},
        BASE,
        {**BASE, "compute": "bfloat16", "wire": "bfloat16", "gas": 3},
        {**BASE, "compute": "bfloat16", "gas": 3},
        {**BASE, "kind": "none"},
        {**BASE, "kind": "none", "compute": "bfloat16", "wire": "bfloat16"},
        {**BASE, "kind": "full", "wire": "bfloat16"},
        {**BASE, "kind": "full", "orig": False},
        {**BASE, "kind": "none", "gas": 3, "orig": False},
    ]
    real = live.launch(world, "live.fsdp", hows, tmp_path)
    assert [first_difference(r, ours(world, how)) for r, how in zip(real, hows)] == [None] * len(hows)
