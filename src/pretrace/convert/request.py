"""What is asked of a conversion: the target format and every choice that moves a number or a byte."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from pretrace.spec import Spec

Target = Literal["hf", "neox", "dcp", "orbax", "maxtext", "nanogpt", "llmc"]
TARGETS: tuple[Target, ...] = ("hf", "neox", "dcp", "orbax", "maxtext", "nanogpt", "llmc")


class Request(Spec):
    """One conversion. What does not concern the target has to keep its neutral value."""

    to: Target
    dtype: Literal["keep", "float32", "bfloat16", "float16"]  # keep: as stored
    shard_bytes: PositiveInt | None  # hf, dcp: at most so many bytes of tensors in a file
    tensor_parallel: PositiveInt  # neox: ranks over which tensors are cut
    scan_axis: NonNegativeInt | None  # maxtext, orbax: where layers are stacked; None: layers apart
    fused_qkv: bool  # maxtext, GPT-3 style: query, key and value in one array
    vocab_rows: PositiveInt | None  # rows of embedding and head; None: as they are
    state: Literal["keep", "drop"]  # optimizer moments, fp32 masters, step

    @model_validator(mode="after")
    def _neutral(self) -> Request:
        if self.tensor_parallel != 1 and self.to != "neox":
            raise ValueError(f"tensor_parallel is for neox, not {self.to}")
        if self.shard_bytes is not None and self.to not in ("hf", "dcp"):
            raise ValueError(f"shard_bytes is for hf and dcp, not {self.to}")
        return self
