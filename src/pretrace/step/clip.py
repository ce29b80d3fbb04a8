"""Norms and clipping of gradients, with the operations of the program that the rule names."""

from __future__ import annotations

from collections.abc import Sequence

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
