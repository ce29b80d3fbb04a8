"""Our real engines in P processes; `how` names the engine and holds the plan."""

import torch
import torch.distributed as dist

from pretrace.spec import build
from pretrace.step.engine_ddp import DdpEngine, Zero1Engine
from pretrace.step.engine_fsdp2 import Fsdp2Engine
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from tiny import DIV, MUL, PLAN, gpt, read_ragged

ENGINES = {"ddp": DdpEngine, "zero1": Zero1Engine, "fsdp2": Fsdp2Engine}


DDP = {
    "reduction.buckets": {"kind": "ddp", "cap_mb": 0.01, "first_cap_mb": 0.01, "restart": "anew"},
    "grad_accum_steps": 2,
}
HOOK = [{**DIV, "where": "wire_pre"}]
BF16 = {**DDP, "reduce_dtype": "bfloat16", "reduction.scaling": HOOK, "reduction.scaling_first": HOOK}
AVG = [{"where": "wire_post", "op": "div", "by": "world_size"}]
SHARDS = {"max_norm": 0.05, "scope": "shards", "norm": "tensors", "rule": "torch", "eps": 1e-6}
FSDP2 = {
    "reduction.buckets": {"kind": "fsdp2", "units": ["blocks.*"]},
    "reduction.collective": "reduce_scatter",
    "reduction.scaling": AVG,
    "reduction.scaling_first": AVG,
    "kernels.mixed": "cast",
    "optimizer.kernel": "torch_loop",
    "clip": SHARDS,
    "loss.denominator": "global_tokens",
    "grad_accum_steps": 2,
}
CAST = {**FSDP2, "kernels.compute_dtype": "bfloat16", "reduce_dtype": "bfloat16", "accum_dtype": "bfloat16"}
VIEWS = {**DDP, "grad_accum_steps": 1, "reduction.scaling": [DIV], "reduction.scaling_first": [MUL]}
HOWS = [
    {"engine": engine, "changes": changes, "steps": 4}
    for engine, changes in (
        ("ddp", {**DDP, "loss.denominator": "global_tokens"}),
        ("ddp", VIEWS),
        ("zero1", {**BF16, "loss.denominator": "rank_step_tokens"}),
        ("fsdp2", FSDP2),
        ("fsdp2", CAST),
    )
]


def default(world):
    return HOWS if world == 3 else []


def plan_of(how, world):
    return build(StepPlan, PLAN, where="").with_({"world_size": world, **how["changes"]})


def run(rank, world, how):
    """Parameters and moments as bit patterns, and the last outcome."""
    plan = plan_of(how, world)
    engine = ENGINES[how["engine"]](plan, gpt(d=16), dist.group.WORLD)
    for step in range(how["steps"]):
        outcome = engine.execute(read_ragged, step=step)
    moments = [t for slot in engine.full_moments().values() for t in slot.values()]
    return bits([*engine.full().values(), *moments]), outcome


def virtually(world, how):
    """The same plan played by one process."""
    plan, model = plan_of(how, world), gpt(d=16)
    state = begin(plan, model)
    for step in range(how["steps"]):
        outcome = execute(plan, state, read_ragged, step=step)
    moments = [t for slot in state.optimizer.tensors.values() for t in slot.values()]
    return bits([*model.parameters(), *moments]), outcome


def bits(tensors):
    return torch.cat([t.detach().flatten() for t in tensors]).view(torch.int32)
