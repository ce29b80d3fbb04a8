"""Our real engines in P processes; `how` names the engine and holds the plan."""

import torch
import torch.distributed as dist

from pretrace.spec import build
from pretrace.step.engine_ddp import DdpEngine, Zero1Engine
from pretrace.step.engine_fsdp2 import Fsdp2Engine
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from tiny import PLAN, gpt, read_ragged

ENGINES = {"ddp": DdpEngine, "zero1": Zero1Engine, "fsdp2": Fsdp2Engine}


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
