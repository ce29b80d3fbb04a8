"""W real gloo processes of FSDP2 and FSDP1 against one process of ours: the same bits after every step."""

import pytest

import live
from live import fsdp
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import flat, gpt, plan, read

pytestmark = pytest.mark.distributed
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


def check(world, pairs):
    differing = {str(how): live.first_difference(real, ours(world, how)) for how, real in pairs}
    assert set(differing.values()) == {None}, differing


@pytest.mark.parametrize("world", [2, 3, 4])
def test_one_process_gives_the_bits_of_real_fsdp(world):
    check(world, live.results(world, "fsdp"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_one_process_gives_the_bits_of_real_fsdp_over_the_full_grid(world):
    hows = fsdp.full(world)
    for start in range(0, len(hows), 6):
        some = hows[start : start + 6]
        check(world, list(zip(some, live.launch(world, "live.fsdp", some))))
