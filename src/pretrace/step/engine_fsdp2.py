"""FSDP2 behind a plan: parameters, gradients and moments in shards (`fully_shard`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pretrace.step.buckets import Fsdp2
from pretrace.step.clip import total_norm, unscale_and_clip
from pretrace.step.engine import Engine, root_of_sum
from pretrace.step.engine_fit import Misfit, for_fsdp2
from pretrace.step.finish import Hands
from pretrace.step.optim import init_state, update
from pretrace.step.optim_spec import assign
from pretrace.step.plan import StepPlan
from pretrace.step.state import StepState, begin
from pretrace.step.telemetry import norm


class Fsdp2Engine(Engine):
    """`fully_shard` on the units of the plan's buckets and on the root, with MixedPrecisionPolicy."""

    name = "FSDP2"

    @staticmethod
    def misfits(plan: StepPlan, backend: str) -> Iterator[Misfit]:  # noqa: D102
        return for_fsdp2(plan, backend)

    def wrap(self, model: nn.Module) -> StepState:  # noqa: D102
        plan = self.plan
        buckets, policy = _settings(plan)
        self.model: Any = model
        device_type = next(model.parameters()).device.type
        mesh = DeviceMesh.from_group(self.group, device_type)
        for name, module in model.named_modules():
            fits = (name.count(".") == pattern.count(".") and fnmatchcase(name, pattern) for pattern in buckets.units)
            if name and any(fits):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        state = begin(plan, model)
        self.groups = assign(plan.optimizer.groups, {name: p.ndim for name, p in state.params.items()})
        self.local = {name: _local(p.detach()) for name, p in state.params.items()}
        state.optimizer = init_state(plan.optimizer, self.local)
        return state

    def accumulating(self) -> AbstractContextManager[object]:  # noqa: D102
        return self._unsynchronised()

    @contextmanager
    def _unsynchronised(self) -> Iterator[None]:
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def hands(self) -> Hands:  # noqa: D102
        state, plan = self.state, self.plan
        whole = [torch.zeros_like(p) if p.grad is None else p.grad for p in state.params.values()]
        grads = [_local(g) for g in whole]
        scale = state.loss_scale.scale

        def finite() -> bool:
            odd = sum(not bool(torch.isfinite(g).all()) for g in grads)
            return root_of_sum(float(odd), self.group, state.device) == 0

        def move(lr: float) -> float:
            by_name = dict(zip(self.local, grads))
            moved = update(plan.optimizer, state.optimizer, self.local, by_name, lr, groups=self.groups)
            return root_of_sum(moved**2, self.group, state.device)

        return Hands(
            norm=lambda: _full(total_norm(whole, "tensors")),
            finite=finite,
            scale_and_clip=lambda scaled: unscale_and_clip(grads, plan.clip, scaled, scale),
            move=move,
            param_norm=lambda: root_of_sum(norm(self.local.values()) ** 2, self.group, state.device),
        )

    def full(self) -> dict[str, Tensor]:  # noqa: D102
        return {name: _full(p.detach()) for name, p in self.state.params.items()}

    def full_moments(self) -> dict[str, dict[str, Tensor]]:  # noqa: D102
        return {
            slot: {name: self._whole(name, tensor) for name, tensor in held.items()}
            for slot, held in self.state.optimizer.tensors.items()
        }

    def _whole(self, name: str, local: Tensor) -> Tensor:
        like: Any = self.state.params[name]
        from torch.distributed.tensor import DTensor

        shard = DTensor.from_local(
            local, like.device_mesh, like.placements, shape=like.shape, stride=like.stride(), run_check=False
        )
        return _full(shard)


def _settings(plan: StepPlan) -> tuple[Fsdp2, MixedPrecisionPolicy]:
    """The units and the precision policy."""
    buckets, kernels = plan.reduction.buckets, plan.kernels
    assert isinstance(buckets, Fsdp2)
    compute = getattr(torch, kernels.compute_dtype) if kernels.compute_dtype != kernels.param_dtype else None
    return buckets, MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=getattr(torch, plan.reduce_dtype))


def _local(tensor: Any) -> Tensor:
    found: Tensor = tensor.to_local()
    return found


def _full(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor()
    return found
