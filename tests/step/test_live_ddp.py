"""W real gloo processes of plain torch DDP against one process of ours: the same bits after every step."""

import pytest

import live
from live import ddp
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import DIV, MUL, flat, gpt, plan, read

pytestmark = pytest.mark.distributed


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


def check(world, pairs):
    differing = {str(how): live.first_difference(real, ours(world, how)) for how, real in pairs}
    assert set(differing.values()) == {None}, differing


@pytest.mark.parametrize("world", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_one_process_gives_the_bits_of_real_ddp(world):
    check(world, live.results(world, "ddp"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_one_process_gives_the_bits_of_real_ddp_over_the_full_grid(world):
    hows = ddp.full(world)
    for start in range(0, len(hows), 6):
        some = hows[start : start + 6]
        check(world, list(zip(some, live.launch(world, "live.ddp", some))))
