"""What a run ran on: versions, processor, threads, flags. Written beside the recipe; equality of bits is promised only for
equal machines and threads."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretrace import __version__

_PACKAGES = ("torch", "numpy", "numba", "safetensors", "tokenizers", "transformers", "pyarrow", "datasets")
# The variables that can move a bit or name a kernel.
_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """The environment as plain data; no host name, no user, no path."""
    return {
        "pretrace": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "blas": _blas(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "flags": {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "numpy_simd": _simd(),
    }


def machine_kind() -> str:
    """The part of the environment that two runs must share for their bits to be comparable."""
    e = describe()
    return f"{e['machine']}/{e['isa']}/{e['threads']} threads/torch {e['packages']['torch']}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _blas() -> str:
    return next(
        (line.strip() for line in torch.__config__.show().splitlines() if "Math" in line and "Kernel" in line), ""
    )


def _simd() -> list[str]:
    config: Any = np.show_config(mode="dicts")
    return list(config.get("SIMD Extensions", {}).get("found", []))
