"""What a target lets one choose. Nothing here rounds a number: dtype and vocabulary are those of the view that is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError


@dataclass(frozen=True, slots=True)
class Adam:
    """The settings of AdamW that some targets keep beside its moments."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Every field is given; a format looks at those that concern it."""

    step: int  # updates done
    shard_bytes: int | None  # hf, dcp: bytes of tensors in a file at most (None: one file); orbax, maxtext: in a chunk
    tensor_parallel: int  # neox: ranks over which tensors are cut
    data_parallel: int  # neox: ranks over which ZeRO-1 cuts the optimizer's state
    pipeline: bool  # neox: a file for each layer and rank; else one for each rank
    neox_linear1: bool  # neox: mlp.linear1 and linear2 as in today's code; else dense_h_to_4h as up to release 2.0
    scan_axis: int | None  # maxtext: where the layers are stacked; None: layers apart
    fused_qkv: bool  # maxtext, GPT-3 style: one array for query, key and value
    ocdbt: bool  # orbax, maxtext: arrays in an OCDBT database; else raw zarr chunks as files
    optimizer: bool  # the optimizer's state goes along where the target has a place for it
    adam: Adam | None  # settings of the optimizer; None: those that the view's metadata holds under `adam`


def plain_options(view: StateView, **changes: Any) -> WriteOptions:
    """One file, no ranks, layers stacked as MaxText stacks them, all that the view holds."""
    step = view.metadata().get("step")
    plain: dict[str, Any] = {
        "step": step if type(step) is int else 0, "shard_bytes": None, "tensor_parallel": 1, "data_parallel": 1,
        "pipeline": True, "neox_linear1": False, "scan_axis": 1, "fused_qkv": True, "ocdbt": True, "optimizer": True,
        "adam": None,
    }  # fmt: skip
    return WriteOptions(**plain | changes)


def adam_of(view: StateView, options: WriteOptions, format: str) -> Adam:
    """The settings of the optimizer, as declared or as the source holds them.

    Raises
    ------
    PretraceError
        If they are neither declared nor known: a learning rate is not guessed.
    """
    if options.adam is not None:
        return options.adam
    found = view.metadata().get("adam")
    if isinstance(found, Mapping):
        try:
            first, second = found["betas"]
            return Adam(
                float(found["lr"]), (float(first), float(second)), float(found["eps"]), float(found["weight_decay"])
            )
        except (KeyError, TypeError, ValueError):
            pass
    raise PretraceError(
        f"{format} keeps lr, betas, eps and weight decay beside the moments, and the source does not say them", "adam",
        "declare them, or leave the optimizer's state out",
    )  # fmt: skip
