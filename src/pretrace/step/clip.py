"""Norms and clipping of gradients, with the operations of the program that the rule names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pretrace.step.finish_spec import ClipSpec


def total_norm(grads: Sequence[Tensor], how: str) -> Tensor:
    """The L2 norm as a 0-dim tensor: of the tensors' norms ("tensors", as torch), or of all elements at once ("flat")."""
    if how == "flat":
        parts = torch.cat([g.reshape(-1) for g in grads])
    else:
        parts = torch.stack(torch._foreach_norm(list(grads)))
    found: Tensor = torch.linalg.vector_norm(parts)
    return found


def sharded_norm(
    flat: Tensor,
    ranges: Sequence[Sequence[tuple[int, int]]],
    add_ranks: Callable[[list[Tensor]], Tensor],
    *,
    tensors_first: bool,
) -> Tensor:
    """The L2 norm of a flat gradient that lies in shards, 0-dim.

    Parameters
    ----------
    ranges : for each rank what it takes one norm of, in order (`buckets.normed_ranges`).
    add_ranks : adds one 1-dim tensor of each rank in the order of the collective.
    tensors_first : each tensor's norm over all ranks, then their norm (FSDP2); else each rank's norm, then over ranks (FSDP1).
    """
    nothing = flat.new_zeros(1)  # the norm of a rank that holds nothing
    norms = [torch.stack(torch._foreach_norm([flat[a:b] for a, b in m])) if m else nothing for m in ranges]
    if not tensors_first:
        return add_ranks([torch.linalg.vector_norm(mine).reshape(1) ** 2.0 for mine in norms])[0] ** 0.5
    found: Tensor = torch.linalg.vector_norm(add_ranks([mine**2.0 for mine in norms]) ** 0.5)
    return found


def coefficient(spec: ClipSpec, norm: Tensor) -> Tensor:
    """What the gradients are multiplied by, 0-dim; 1 where nothing is clipped. `norm` is of the unscaled gradient."""
    if spec.rule == "torch":
        return torch.clamp(spec.max_norm / (norm + spec.eps), max=1.0)
    return 1.0 / torch.clamp((norm + spec.eps) / spec.max_norm, min=1.0)


def unscale_and_clip(grads: Sequence[Tensor], spec: ClipSpec | None, norm: Tensor, scale: float) -> float:
    """Divides by the loss scale and clips, in place; `norm` is of the gradients as they come, scaled.

    torch's way unscales first and then multiplies by the coefficient; DeepSpeed's multiplies once, by the reciprocal of
    both factors. Returns the clip coefficient.
    """
    held = list(grads)
    if spec is not None and spec.rule == "deepspeed":
        over = (float(norm) / scale + spec.eps) / spec.max_norm
        factor = over * scale if over > 1 else scale
        torch._foreach_mul_(held, 1.0 / factor)
        return scale / factor
    if scale != 1.0:
        torch._foreach_mul_(held, 1.0 / scale)
    if spec is None:
        return 1.0
    clipped = coefficient(spec, norm / scale if scale != 1.0 else norm)
    torch._foreach_mul_(held, clipped)
    return float(clipped)
