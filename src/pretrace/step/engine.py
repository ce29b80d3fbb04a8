"""Real engines behind a plan whose ranks are processes: what DDP, FSDP2 and ZeRO-1 share.

`execute` plays any plan. Where every rank is a process and the plan is what an engine of torch does anyway, the engine does it:
overlapped, sharded, on its own wire. A plan that it does not do is refused, never bent. On gloo the bits are those of
`execute`; on other backends those of the order that the plan declares for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrace.step.denominators import counts_of, weigh
from pretrace.step.engine_fit import Misfit, for_all, refuse_misfits
from pretrace.step.evaluate import Read, count_table, open_books, read_batches
from pretrace.step.finish import Hands, conclude
from pretrace.step.kernels import in_force
from pretrace.step.loss import backward
from pretrace.step.outcome import StepOutcome, outcome_of
from pretrace.step.plan import StepPlan
from pretrace.step.shared import add_everywhere, agreed
from pretrace.step.state import StepState


class Engine(ABC):
    """Reads, counts, weighs, plays this process's rank; wrapping, clipping and moving are the engine's own."""

    name: ClassVar[str]

    def __init__(self, plan: StepPlan, model: nn.Module, group: dist.ProcessGroup) -> None:
        """Wraps `model`.

        Raises
        ------
        PretraceError
            If the plan's ranks are not the group's processes, or the engine does something else than the plan.
        """
        backend = dist.get_backend(group)
        given = for_all(
            plan, processes=dist.get_world_size(group), routed=bool(getattr(model, "experts", False)), backend=backend
        )
        refuse_misfits(self.name, chain(given, self.misfits(plan, backend)))
        self.plan, self.group = plan, group
        self.rank = dist.get_rank(group)
        self.state = self.wrap(model)

    @staticmethod
    @abstractmethod
    def misfits(plan: StepPlan, backend: str) -> Iterator[Misfit]:
        """What this engine does otherwise than the plan, beside what no engine does."""

    @abstractmethod
    def wrap(self, model: nn.Module) -> StepState:
        """The state whose `forward` is the engine's."""

    @abstractmethod
    def accumulating(self) -> AbstractContextManager[object]:
        """In force for every micro-step but the last: nothing is communicated."""

    @abstractmethod
    def hands(self) -> Hands:
        """How the gradients that the engine has reduced are measured, clipped and applied."""

    @abstractmethod
    def full(self) -> dict[str, Tensor]:
        """Whole parameters by name, in every process: for checkpoints and comparison."""

    @abstractmethod
    def full_moments(self) -> dict[str, dict[str, Tensor]]:
        """Whole optimizer tensors by slot and name, in every process: for checkpoints."""

    def clear(self) -> None:
        """Drops the gradients of the last update."""
        for p in self.state.params.values():
            p.grad = None

    def execute(self, read: Read, *, step: int) -> StepOutcome:
        """The update that follows `step` updates; every process gets the same outcome. As `step.execute.execute`."""
        plan, state, group = self.plan, self.state, self.group
        batches = agreed(group, lambda: read_batches(plan, read, step, [self.rank]), state.device)
        table = torch.from_numpy(count_table(plan, batches)).to(state.device)
        counted = add_everywhere(table, group).cpu().numpy()
        counts = counts_of(plan.loss, counted[..., :2], int(counted[..., 2].sum()))
        weights = weigh(plan.loss, counts, mean=plan.reduction.takes_mean, scale=state.loss_scale.scale)
        books = open_books(plan)
        self.clear()
        with in_force(plan.kernels, {}, state.device.type):
            for micro_step in range(plan.grad_accum_steps):
                last = micro_step == plan.grad_accum_steps - 1
                with nullcontext() if last else self.accumulating():
                    batch, token = batches[self.rank, micro_step], weights.token[self.rank, micro_step]
                    books.enter(self.rank, micro_step, backward(state.forward, batch, token, plan.loss, state.device))
        books.complete(group, state.device)
        done = conclude(plan, state, self.hands())
        return outcome_of(plan, step, counts, books, done, evaluations=plan.grad_accum_steps)


def root_of_sum(squares: float, group: dist.ProcessGroup, device: torch.device) -> float:
    """The root of a sum of squares over processes, in fp64: norms for the log."""
    total = torch.tensor([squares], dtype=torch.float64, device=device)
    dist.all_reduce(total, group=group)
    return float(total.sqrt())
