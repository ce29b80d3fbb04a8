"""DDP and ZeRO-1 behind a plan: gradients reduced by DistributedDataParallel, optimizer states whole or shared out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pretrace.step.buckets import Ddp
from pretrace.step.clip import total_norm, unscale_and_clip
from pretrace.step.engine import Engine, root_of_sum
from pretrace.step.engine_fit import DIV, MUL, Misfit, for_ddp, words
from pretrace.step.finish import Hands, move
from pretrace.step.optim import init_state, update
from pretrace.step.optim_spec import assign
from pretrace.step.plan import StepPlan
from pretrace.step.state import StepState, begin
from pretrace.step.telemetry import norm


class DdpEngine(Engine):
    """DistributedDataParallel; a narrower wire goes through a hook that casts, divides in that dtype and sums."""

    name = "DDP"
    ddp: DistributedDataParallel

    @staticmethod
    def misfits(plan: StepPlan, backend: str) -> Iterator[Misfit]:  # noqa: D102
        return for_ddp(plan)

    def wrap(self, model: nn.Module) -> StepState:  # noqa: D102
        plan = self.plan
        cap, views = _settings(plan)
        state = begin(plan, model)
        self.ddp = DistributedDataParallel(
            model, process_group=self.group, bucket_cap_mb=cap, gradient_as_bucket_view=views
        )
        if plan.reduce_dtype != plan.kernels.param_dtype:
            wire = getattr(torch, plan.reduce_dtype)
            # a lambda, because DDP inspects a hook's annotations and does not understand postponed ones
            self.ddp.register_comm_hook(None, lambda _, bucket: low_precision_hook(bucket, wire, self.group))
        self.views = views
        state.forward = torch.compile(self.ddp) if plan.kernels.compile else self.ddp
        return state

    def accumulating(self) -> AbstractContextManager[object]:  # noqa: D102
        found: AbstractContextManager[object] = self.ddp.no_sync()
        return found

    def clear(self) -> None:
        """Zeroes gradients that are views of buckets: DDP divides those, and multiplies ones that have been dropped."""
        for p in self.state.params.values():
            if self.views and p.grad is not None:
                p.grad.zero_()
            else:
                p.grad = None

    def hands(self) -> Hands:  # noqa: D102
        state, plan = self.state, self.plan
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in state.params.values()]
        scale = state.loss_scale.scale
        return Hands(
            norm=lambda: total_norm(grads, plan.clip.norm if plan.clip else "tensors"),
            finite=lambda: all(bool(torch.isfinite(g).all()) for g in grads),
            scale_and_clip=lambda scaled: unscale_and_clip(grads, plan.clip, scaled, scale),
            move=lambda lr: self.move(grads, lr),
            param_norm=lambda: norm(state.params.values()),
        )

    def move(self, grads: list[Tensor], lr: float) -> float:
        """Applies the optimizer; the norm of what moved."""
        return move(self.plan, self.state, grads, lr)

    def full(self) -> dict[str, Tensor]:  # noqa: D102
        return {name: p.detach() for name, p in self.state.params.items()}

    def full_moments(self) -> dict[str, dict[str, Tensor]]:  # noqa: D102
        return self.state.optimizer.tensors


class Zero1Engine(DdpEngine):
    """DDP whose processes share the optimizer out: each keeps the moments of its parameters, moves them and sends them round.

    Elementwise arithmetic does not ask who does it, so the bits are DDP's.
    """

    name = "ZeRO-1"

    def wrap(self, model: nn.Module) -> StepState:  # noqa: D102
        state = super().wrap(model)
        self.owners = share_out({name: p.numel() for name, p in state.params.items()}, self.plan.world_size)
        self.groups = assign(self.plan.optimizer.groups, {name: p.ndim for name, p in state.params.items()})
        state.optimizer = init_state(self.plan.optimizer, self._own(state))
        return state

    def _own(self, state: StepState) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in state.params.items() if self.owners[name] == self.rank}

    def move(self, grads: list[Tensor], lr: float) -> float:  # noqa: D102
        state, own = self.state, self._own(self.state)
        by_name = dict(zip(state.params, grads))
        mine = {name: by_name[name] for name in own}
        moved = update(self.plan.optimizer, state.optimizer, own, mine, lr, groups=self.groups)
        self._send_round({name: p.detach() for name, p in state.params.items()})
        return root_of_sum(moved**2, self.group, state.device)

    def full_moments(self) -> dict[str, dict[str, Tensor]]:  # noqa: D102
        found = {}
        for slot, held in self.state.optimizer.tensors.items():
            found[slot] = {
                n: held[n].clone() if n in held else torch.empty_like(p) for n, p in self.state.params.items()
            }
            self._send_round(found[slot])
        return found

    def _send_round(self, tensors: dict[str, Tensor]) -> None:
        """Every owner's tensors go to all, one message an owner."""
        for owner in range(self.plan.world_size):
            mine = [tensor for name, tensor in tensors.items() if self.owners[name] == owner]
            if not mine:
                continue
            message = torch.cat([tensor.detach().reshape(-1) for tensor in mine])
            dist.broadcast(message, group_src=owner, group=self.group)
            if owner != self.rank:
                for tensor, part in zip(mine, torch.split(message, [tensor.numel() for tensor in mine])):
                    tensor.copy_(part.view_as(tensor))


def share_out(sizes: dict[str, int], n: int) -> dict[str, int]:
    """The owner of each parameter: largest first, to whoever has least.

    >>> share_out({"a": 5, "b": 3, "c": 3}, 2)
    {'a': 0, 'b': 1, 'c': 1}
    """
    load = [0] * n
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = load.index(min(load))
        owners[name] = owner
        load[owner] += sizes[name]
    return {name: owners[name] for name in sizes}


def _settings(plan: StepPlan) -> tuple[float | None, bool]:
    """DDP's bucket cap and whether gradients are views of buckets."""
    buckets = plan.reduction.buckets
    assert isinstance(buckets, Ddp)
    default = (buckets.first_cap_mb, buckets.cap_mb) == (1, 25)
    views = (words(plan.reduction.scaling_first), words(plan.reduction.scaling)) == ((MUL,), (DIV,))
    return (None if default else buckets.cap_mb), views


def low_precision_hook(bucket: Any, dtype: torch.dtype, group: dist.ProcessGroup) -> torch.futures.Future[Tensor]:
    """Casts the bucket, divides it by the world size in that dtype, sums, and copies it back (torch's refuses gloo)."""
    buffer: Tensor = bucket.buffer()
    small = buffer.to(dtype).div_(dist.get_world_size(group))
    future = dist.all_reduce(small, group=group, async_op=True).get_future()

    def back(done: Any) -> Tensor:
        value = done.value()
        return buffer.copy_(value[0] if isinstance(value, list) else value)

    found: torch.futures.Future[Tensor] = future.then(back)
    return found
