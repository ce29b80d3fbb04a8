"""What is asked of a conversion: the target format and every choice that moves a number or a byte."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrace.spec import Spec

Target = Literal["hf", "neox", "dcp", "orbax", "maxtext", "nanogpt", "llmc"]
TARGETS: tuple[Target, ...] = ("hf", "neox", "dcp", "orbax", "maxtext", "nanogpt", "llmc")


class AdamSpec(Spec):
    """The settings of AdamW that some targets keep beside its moments."""

    lr: PositiveFloat
    betas: tuple[float, float]
    eps: PositiveFloat
    weight_decay: NonNegativeFloat


class Request(Spec):
    """One conversion. What does not concern the target has to keep its neutral value."""

    to: Target
    dtype: Literal["keep", "float32", "bfloat16", "float16"]  # keep: as stored
    shard_bytes: PositiveInt | None  # hf, dcp: at most so many bytes of tensors in a file; orbax, maxtext: in a chunk
    tensor_parallel: PositiveInt  # neox: ranks over which tensors are cut
    data_parallel: PositiveInt  # neox: ranks over which ZeRO-1 cuts the optimizer's state
    linear1: bool  # neox: mlp.linear1 and linear2, as in today's code; else dense_h_to_4h, as up to release 2.0
    ocdbt: bool  # orbax, maxtext: arrays in an OCDBT database; else raw zarr chunks as files
    scan_axis: NonNegativeInt | None  # maxtext, orbax: where layers are stacked; None: layers apart
    fused_qkv: bool  # maxtext, GPT-3 style: query, key and value in one array
    vocab_rows: PositiveInt | None  # rows of embedding and head; None: as they are
    state: Literal["keep", "drop"]  # optimizer moments, fp32 masters, step
    adam: AdamSpec | None  # neox, nanogpt keep these beside the moments; None: as the source says

    @model_validator(mode="after")
    def _neutral(self) -> Request:
        if self.tensor_parallel != 1 and self.to != "neox":
            raise ValueError(f"tensor-parallel ranks (--tp) are for neox, not {self.to}")
        if self.data_parallel != 1 and self.to != "neox":
            raise ValueError(f"data-parallel ranks (--dp) are for neox, not {self.to}")
        if self.shard_bytes is not None and self.to not in ("hf", "dcp", "orbax", "maxtext"):
            raise ValueError(f"a shard size (--shard-size) is for hf, dcp, orbax and maxtext, not {self.to}")
        return self
