"""W real gloo processes of plain torch DDP against one process of ours: the same bits after every step."""

import itertools

import pytest
import torch

import live
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import DIV, MUL, flat, gpt, plan, read

pytestmark = pytest.mark.distributed
BASE = {"wire": "float32", "gas": 1, "cap_mb": 0.004, "view": False, "micro": 2, "clip": 1.0, "steps": 20}


def plan_of(world, how):
    """What DDP does, written as a plan."""
    if how["wire"] == "bfloat16":
        first = later = [{**DIV, "where": "wire_pre"}]
    else:
        # gradients that have become views of the bucket are divided, all others multiplied by 1 / W
        first, later = [MUL], [DIV if how["view"] else MUL]
    ddp = {"kind": "ddp", "cap_mb": how["cap_mb"], "first_cap_mb": how["cap_mb"], "restart": "anew"}
    of = plan(world_size=world, grad_accum_steps=how["gas"], micro_batch=how["micro"], reduce_dtype=how["wire"],
              reduction__buckets=ddp, reduction__scaling=later, reduction__scaling_first=first)  # fmt: skip
    return of.with_({"clip.max_norm": how["clip"]} if how["clip"] else {"clip": None})


def ours(world, how):
    of, model = plan_of(world, how), gpt(d=16, layers=1)
    state, seen = begin(of, model), []
    for step in range(how["steps"]):
        execute(of, state, read, step=step)
        seen.append(flat(model).clone())
    return seen


def first_difference(real, virtual):
    """The first step after which a bit differs; None if none does."""
    assert len(real) == len(virtual)
    return next((s for s, (a, b) in enumerate(zip(real, virtual)) if not torch.equal(a, b)), None)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_one_process_gives_the_bits_of_real_ddp(world, tmp_path):
    hows = [{**BASE, "wire": wire, "gas": gas} for wire, gas in itertools.product(("float32", "bfloat16"), (1, 4))]
    hows.append({**BASE, "view": True, "clip": None})
    real = live.launch(world, "live.ddp", hows, tmp_path)
    assert [first_difference(r, ours(world, how)) for r, how in zip(real, hows)] == [None] * len(hows)
