"""How one update is computed, as a value: the step plan and what executes it.

The face holds the plan, which is plain data and needs no torch. What computes stands beside it:

    step.state.begin(plan, model)                    the state before the first update
    step.execute.execute(plan, state, read, step=s)  one update, all ranks played by this process or shared by a group
    step.engine_ddp, step.engine_fsdp2               DDP, ZeRO-1 and FSDP2 behind a plan whose ranks are processes
"""

from pretrace.step.finish_spec import ClipSpec, KernelSpec
from pretrace.step.loss_spec import DENOMINATORS, LossSpec
from pretrace.step.plan import StepPlan
from pretrace.step.reduction_spec import ReductionSpec, ScaleOp
from pretrace.step.visits import Budget

__all__ = ["DENOMINATORS", "Budget", "ClipSpec", "KernelSpec", "LossSpec", "ReductionSpec", "ScaleOp", "StepPlan"]
