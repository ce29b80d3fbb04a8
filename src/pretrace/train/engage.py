"""Puts a run that has begun, or was restored, behind one of torch's engines."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from pretrace.errors import PretraceError
from pretrace.model.decoder import Attention, Decoder
from pretrace.step.engine import Engine
from pretrace.step.engine_ddp import DdpEngine, Zero1Engine
from pretrace.step.engine_fsdp2 import Fsdp2Engine
from pretrace.train.team import Team
from pretrace.train.update import Training

EngineName = Literal["plan", "ddp", "fsdp2", "zero1"]
ENGINES: dict[str, type[Engine]] = {"ddp": DdpEngine, "fsdp2": Fsdp2Engine, "zero1": Zero1Engine}


def engage(training: Training, team: Team, name: EngineName) -> None:
    """Hands the run's parameters and moments to the engine called `name`; `plan` is the plan's own executor.

    Raises
    ------
    PretraceError
        If there is one process only, or the engine does not do what the plan says.
    """
    training.team = team
    if name == "plan":
        return
    if team.group is None:
        raise PretraceError(f"{name} needs several processes", "--engine", "start with torchrun, or use --engine plan")
    before = training.state
    engine = ENGINES[name](training.recipe.step, before.model, team.group)
    after = engine.state
    for slot, held in after.optimizer.tensors.items():
        for parameter, tensor in held.items():
            with torch.no_grad():
                tensor.copy_(_share(before.optimizer.tensors[slot][parameter], after.params[parameter]))
    after.optimizer.step = before.optimizer.step
    after.loss_scale, after.schedule_offset = before.loss_scale, before.schedule_offset
    after.updates_since_start = 0  # a real engine begins with its first layout again
    training.engine, training.state = engine, after


def _share(whole: Tensor, parameter: Any) -> Tensor:
    """This process's part of a whole tensor: all of it, or the shard that `parameter` keeps."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return whole
    shard: Any = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    local: Tensor = shard.to_local()
    return local


def is_sharded(training: Training) -> bool:
    """Whether every process keeps a part of the parameters only."""
    return isinstance(training.engine, Fsdp2Engine)


def whole_model(training: Training) -> Decoder:
    """A decoder with all parameters in this process: the run's own, or gathered from everyone's shards."""
    model = training.state.model
    assert isinstance(model, Decoder)
    if training.engine is None or not is_sharded(training):
        return model
    found = training.engine.full()
    attention: Attention = "eager" if training.recipe.step.kernels.attention == "eager" else "sdpa"
    gathered = Decoder(training.recipe.model, attention, seed=training.recipe.seeds.dropout)
    with torch.no_grad():
        for name, parameter in gathered.named_parameters():
            parameter.copy_(found[name])
    kept: Decoder = gathered.to(training.state.device, training.state.dtype)
    return kept
