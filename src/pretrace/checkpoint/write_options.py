"""What a target lets one choose. Nothing here rounds a number: dtype and vocabulary are those of the view that is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.view import StateView


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Every field is given; a format looks at those that concern it."""

    step: int  # updates done
    shard_bytes: int | None  # hf, dcp: at most so many bytes of tensors in a file; None: one file
    tensor_parallel: int  # neox: ranks over which tensors are cut
    pipeline: bool  # neox: a file for each layer and rank; else one for each rank
    scan_axis: int | None  # maxtext: where the layers are stacked; None: layers apart
    fused_qkv: bool  # maxtext, GPT-3 style: one array for query, key and value
    optimizer: bool  # the optimizer's state goes along where the target has a place for it


def plain_options(view: StateView, **changes: Any) -> WriteOptions:
    """One file, no ranks, layers stacked as MaxText stacks them, all that the view holds."""
    step = view.metadata().get("step")
    plain: dict[str, Any] = {
        "step": step if type(step) is int else 0, "shard_bytes": None, "tensor_parallel": 1, "pipeline": True, "scan_axis": 1,
        "fused_qkv": True, "optimizer": True,
    }  # fmt: skip
    return WriteOptions(**plain | changes)
