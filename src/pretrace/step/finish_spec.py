"""What happens around the reduction, as data: clipping after it, and the kernels that decide which equality can be claimed."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from pretrace.spec import Spec


class ClipSpec(Spec):
    """Clipping by the norm of the gradient.

    scope : "global": the norm of the reduced gradient. "shards": the same, summed over the shards of the ranks (FSDP; the
        buckets' layout says who holds what). "local": every rank takes the norm of its own unreduced gradient and clips
        its 1/world_size of the reduced one with it (the non-pipeline ZeRO-1 path that GPT-NeoX v1.0 pins; in a
        noise-dominated batch that norm is about sqrt(world_size) too large).
    norm : "tensors": the norm of the norms of all tensors (torch) or of all tensors that a rank holds a shard of (FSDP);
        "flat": one norm over all elements.
    rule : "torch": min(1, max_norm / (norm + eps)), always multiplied; "deepspeed": ((norm / scale) + eps) / max_norm,
        divided where above 1, in one go with the loss scale.
    """

    max_norm: PositiveFloat
    scope: Literal["global", "local", "shards"]
    norm: Literal["tensors", "flat"]
    rule: Literal["torch", "deepspeed"]
    eps: NonNegativeFloat


Attention = Literal["eager", "any", "math", "flash", "efficient"]


class KernelSpec(Spec):
    """Arithmetic of the model's own kernels. Two runs that differ here cannot be promised the same bits."""

    param_dtype: Literal["float32", "bfloat16", "float16"]  # storage of the parameters that the optimizer updates
    compute_dtype: Literal["float32", "bfloat16", "float16"]
    # How a compute dtype other than param_dtype is reached: torch.autocast, or parameters cast before the forward
    # (FSDP's mixed precision; gradients are then of compute_dtype).
    mixed: Literal["autocast", "cast"]
    attention: Attention  # the decoder's own explicit softmax, or which of torch's scaled-dot-product kernels
    threads: PositiveInt | None  # of one process; None: as the process is set
    compile: bool
    deterministic: bool  # torch.use_deterministic_algorithms
    # Of our own trainer; absent in plans of others, whose arithmetic is the plain one.
    loss_rows: PositiveInt | None = None  # positions whose logits exist at a time; None: all of a micro-batch
    recompute: bool = False  # blocks are computed again in the backward pass: less memory, the same bits
