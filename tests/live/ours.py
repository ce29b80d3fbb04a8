"""Our executor shared by P processes; `how` holds a plan and what the processes do."""

import torch.distributed as dist

from pretrace.spec import build
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from tiny import PLAN, flat, gpt, read, read_ragged


def run(rank, processes, how):
    """The parameters after the last step as bit patterns, and the last outcome; None where the plan wants other processes."""
    plan = build(StepPlan, PLAN, where="").with_(how["changes"])
    if how.get("processes", processes) != processes:
        return None
    group = dist.group.WORLD if processes > 1 else None
    model = gpt(d=16, layers=1)
    state, outcome = begin(plan, model), None
    for step in range(how["steps"]):
        outcome = execute(plan, state, read_ragged if how["ragged"] else read, step=step, group=group)
    return flat(model).clone(), outcome
