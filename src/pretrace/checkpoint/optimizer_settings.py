"""The settings that optimizers keep beside their moments, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def adam_settings(param_groups: Any) -> dict[str, Any] | None:
    """lr, betas, eps and weight decay of torch's `param_groups`; None if they are not those of Adam.

    Groups may differ in weight decay (norms and biases have none): the largest is taken.
    """
    groups = [group for group in param_groups if isinstance(group, Mapping)] if isinstance(param_groups, list) else []
    if not groups:
        return None
    first = groups[0]
    betas = first.get("betas")
    numbers = [first.get("lr"), first.get("eps"), *(betas if isinstance(betas, (list, tuple)) else ())]
    if len(numbers) != 4 or not all(type(n) in (int, float) for n in numbers):
        return None
    decays = [float(d) for group in groups if isinstance(d := group.get("weight_decay"), (int, float))]
    return {"lr": float(numbers[0] or 0), "eps": float(numbers[1] or 0), "betas": (numbers[2], numbers[3]),
            "weight_decay": max(decays, default=0.0)}  # fmt: skip
