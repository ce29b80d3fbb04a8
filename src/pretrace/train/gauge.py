"""How fast a run is against what its device could do: FLOPs of a token, the device's matmul rate, peak memory.

Training FLOPs of a token are 6 a weight that takes part in a matmul (embedding rows are looked up, not multiplied) plus
12 L T D for attention, counted in full as PaLM's appendix B does although half of it is masked.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from functools import lru_cache

import torch

from pretrace.model.spec import ModelSpec, n_idle_params, n_params

# Dense matmul peaks in FLOP/s by what the device calls itself (vendor data sheets, without sparsity).
_PEAKS: dict[str, dict[str, float]] = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float16": 362e12, "float32": 91.6e12},
    "A10": {"bfloat16": 125e12, "float16": 125e12, "float32": 31.2e12},
    "4090": {"bfloat16": 165e12, "float16": 165e12, "float32": 82.6e12},
    "T4": {"float16": 65e12, "float32": 8.1e12},
    "V100": {"float16": 125e12, "float32": 15.7e12},
}


def flops_per_token(spec: ModelSpec, seq_len: int) -> float:
    """FLOPs of one token's forward and backward pass.

    >>> from pretrace.model.presets import gpt2
    >>> spec = gpt2(vocab_size=50304, max_seq_len=1024, n_layers=12, d_model=768, n_heads=12)
    >>> round(flops_per_token(spec, 1024) / 1e6)
    855
    """
    looked_up = spec.vocab_size * spec.d_model if not spec.tied_head else 0
    if spec.position == "learned":
        looked_up += spec.max_seq_len * spec.d_model
    return 6.0 * (n_params(spec) - looked_up - n_idle_params(spec)) + 12.0 * spec.n_layers * seq_len * spec.d_model


@lru_cache
def peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float | None:
    """The device's matmul rate in FLOP/s: from its data sheet on a GPU, measured here on a CPU (0.1 s); None if unknown."""
    name = str(dtype).removeprefix("torch.")
    if device.type == "cuda":
        called = torch.cuda.get_device_name(device)
        return next((rates.get(name) for key, rates in _PEAKS.items() if key in called), None)
    if device.type != "cpu":
        return None
    n = 512
    a, b = torch.ones(n, n, dtype=dtype), torch.ones(n, n, dtype=dtype)
    best = min(_timed(a, b) for _ in range(5))
    return 2.0 * n**3 / best


def _timed(a: torch.Tensor, b: torch.Tensor) -> float:
    started = time.perf_counter()
    a @ b
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Gauge:
    """Turns tokens a second into a share of the peak, of one device times the number of processes."""

    flops_per_token: float
    peak: float | None  # FLOP/s of all devices of the run

    def mfu(self, tokens_per_s: float | None) -> float | None:
        """The share; None where the peak or the speed is not known."""
        return None if not self.peak or tokens_per_s is None else tokens_per_s * self.flops_per_token / self.peak

    def tflops(self, tokens_per_s: float) -> float:
        """TFLOP/s of all devices."""
        return tokens_per_s * self.flops_per_token / 1e12


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held so far: of this process, or of its allocations on the GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
