"""The fp16 rule of GPT-NeoX v1.0's pipeline engine in real processes against virtual ranks."""

import pytest
import torch

import live
from live.pipeline import HOW
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import flat, gpt, plan, read

AFTER = [{"where": "wire_post", "op": "mul", "by": "world_size"}]


def plan_of(world, how):
    return plan(
        world_size=world, grad_accum_steps=how["gas"], micro_batch=how["micro"], accum_dtype="float16", reduce_dtype="float16",
        kernels__compute_dtype="float16", kernels__mixed="cast", optimizer__kernel="torch_loop",
        reduction__buckets={"kind": "capped", "cap_numel": how["cap"]}, reduction__scaling=AFTER, reduction__scaling_first=AFTER,
        loss_scale={"kind": "static", "scale": how["scale"]},
        clip={"max_norm": how["clip"], "scope": "global", "norm": "flat", "rule": "deepspeed", "eps": 1e-6},
    )  # fmt: skip


@pytest.mark.distributed
def test_unscaled_fp16_sums_scaled_afterwards_are_the_bits_of_three_processes():
    ((_, real),) = live.results(3, "pipeline")
    of, model = plan_of(3, HOW), gpt(d=16, layers=1)
    state = begin(of, model)
    for step, bits in enumerate(real):
        outcome = execute(of, state, read, step=step)
        assert torch.equal(flat(model), bits), step
    assert outcome.clip_coefficient < 1


def highest_scale(world, gas):
    """The largest loss scale, as a power of two, at which 64 micro-batches of the same text do not overflow."""
    for power in range(20, 0, -1):
        of = plan_of(world, {**HOW, "gas": gas}).with_(
            {"loss_scale": {"kind": "static", "scale": 2.0**power}, "clip": None}
        )
        if not execute(of, begin(of, gpt(d=16, layers=1)), lambda _: read(range(1)), step=0).skipped:
            return power
    return 0


def test_ranks_overflow_an_fp16_wire_at_a_quarter_of_the_scale_that_micro_steps_do():
    # 16 ranks add 16 whole gradients on the wire; 4 ranks x gas 4 add 4, each the sum of four quarters.
    assert highest_scale(4, 4) - highest_scale(16, 1) == 2
