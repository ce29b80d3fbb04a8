"""Puts a plan's kernels in force for a block of code, and back afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pretrace.step.finish_spec import KernelSpec

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@contextmanager
def in_force(spec: KernelSpec, params: Mapping[str, nn.Parameter], device_type: str) -> Iterator[None]:
    """Threads, determinism, attention kernel and compute dtype as the spec says, for forward and backward."""
    with ExitStack() as stack:
        if spec.threads is not None and torch.get_num_threads() != spec.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(spec.threads)
        if spec.deterministic and not torch.are_deterministic_algorithms_enabled():
            stack.callback(torch.use_deterministic_algorithms, False)
            torch.use_deterministic_algorithms(True)
        if spec.attention in _BACKENDS:
            stack.enter_context(sdpa_kernel(_BACKENDS[spec.attention]))
        if spec.compute_dtype != spec.param_dtype:
            dtype = getattr(torch, spec.compute_dtype)
            if spec.mixed == "autocast":
                stack.enter_context(torch.autocast(device_type, dtype=dtype))
            elif params:  # none: an engine casts by itself
                stack.enter_context(_cast(params, dtype))
        yield


@contextmanager
def _cast(params: Mapping[str, nn.Parameter], dtype: torch.dtype) -> Iterator[None]:
    """Parameters hold rounded copies of themselves, as FSDP's mixed precision; gradients come in that dtype too."""
    kept = {name: p.data for name, p in params.items()}
    try:
        for p in params.values():
            p.grad = None
            p.data = p.data.to(dtype)
        yield
    finally:
        for name, p in params.items():
            p.grad = None
            p.data = kept[name]
