"""Our executor shared by P processes; `how` holds a plan and what the processes do."""

import torch.distributed as dist

from pretrace.errors import PretraceError
from pretrace.spec import build
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from pretrace.step.visits import UNBOUNDED, Budget
from tiny import DIRECT, EXACT, PLAN, RING, TREE, flat, gpt, read, read_ragged

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
    tight = [{"changes": orders[1], "steps": 3, "ragged": True, "budget": n} for n in (30_000, 0)]
    return [*({"changes": c, "steps": 3, "ragged": True} for c in [*orders, *wires, *rules, local]), *tight]


def dealt(steps):
    """8 micro-batches an update, summed exactly, dealt as W x gas."""
    pairs = [(w, 8 // w) for w in (1, 2, 4, 8)]
    changes = [{**EXACT, "micro_batch": 1, "world_size": w, "grad_accum_steps": g} for w, g in pairs]
    return [{"changes": c, "steps": steps, "ragged": False} for c in changes]


def default(world):
    """Every order and rule at 2 and 4 processes, and exact sums of 8 micro-batches dealt in as many ways as `world` divides."""
    if world not in (2, 4):
        return []
    exact = [how for how in dealt(3) if how["changes"]["world_size"] % world == 0]
    return [*hows(), *exact, {"changes": {"world_size": 4}, "failing": True}]


def failing(rank, plan):
    """What this process says when the last one cannot read its batches."""

    def reader(positions):
        if rank == dist.get_world_size() - 1:
            raise PretraceError("the disk is gone", "here", "mount it")
        return read(positions)

    try:
        execute(plan, begin(plan, gpt(d=16, layers=1)), reader, step=0, group=dist.group.WORLD)
    except PretraceError as error:
        return error.what
    return "nothing"


def run(rank, processes, how):
    """The parameters after the last step as bit patterns, and the last outcome."""
    plan = build(StepPlan, PLAN, where="").with_(how["changes"])
    if how.get("failing"):
        return failing(rank, plan)
    group = dist.group.WORLD if processes > 1 else None
    model = gpt(d=16, layers=1)
    state, outcome = begin(plan, model), None
    for step in range(how["steps"]):
        outcome = execute(plan, state, read_ragged if how["ragged"] else read, step=step, group=group,
                          budget=Budget(how.get("budget")) if processes > 1 else UNBOUNDED)  # fmt: skip
    return flat(model).clone(), outcome
