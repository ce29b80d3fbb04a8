"""The logits of both sides on a probe, each by two implementations that share no code, and the distance between them.

Voices: pretrace's decoder (torch, float32) on the canonical tensors; transformers on a folder that it loads; and the second
reading (numpy, float64) on the stored tensors by their own framework's names. The decoder on the source is what the others
are measured against. Distances are in ulps: units of the last float32 place of the largest logit of the position.

Axes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.convert.second.arithmetic import log_softmax
from pretrace.convert.second.reading import reader_of, second_logits
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec

# float32 kernels of trained models differ by up to 20 (tests/model/test_parity.py: 7.5); deep models add roundings. The
# smallest layout fault of the mutation test moves them by over 100,000.
BOUND_ULPS = 1024.0
Logits = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Voice:
    """One implementation on one side."""

    side: str  # source or target
    by: str  # pretrace's decoder, transformers 5.24.0, MaxText's Llama (second reading) ...
    logits: Logits


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a voice is from the reference."""

    side: str
    by: str
    max_ulp: float
    kl: float  # mean of KL(reference, this) over positions, in nats
    same: bool  # every logit has the same bits, as float32

    @property
    def agrees(self) -> bool:
        """Whether rounding explains it."""
        return self.max_ulp <= BOUND_ULPS


def decoder_voice(side: str, view: StateView, spec: ModelSpec, tokens: NDArray[np.int64]) -> Voice:
    """pretrace's decoder in float32 on a canonical view."""
    import torch

    from pretrace.score.likelihood import decoder_of

    with torch.no_grad():
        made = decoder_of(view, spec)(torch.from_numpy(tokens)).double().numpy()
    return Voice(side, "pretrace's decoder", made)


def second_voice(
    side: str, view: StateView, spec: ModelSpec, tokens: NDArray[np.int64], how: str = "second reading"
) -> Voice | None:
    """The second reading of a view under its file's names; None for names that no framework of ours has."""
    reader = reader_of(view)
    if reader is None:
        return None
    return Voice(side, f"{reader.name} ({how})", second_logits(view, spec, tokens))


def is_for_transformers(path: str, view: StateView) -> bool:
    """Whether a checkpoint is a folder as transformers saves them, by its names and its files."""
    reader = reader_of(view)
    theirs = reader is not None and reader.name.startswith("transformers")
    return theirs and view.format in ("safetensors", "torch") and (Path(path) / "config.json").is_file()


def transformers_voice(side: str, folder: Path, tokens: NDArray[np.int64]) -> Voice:
    """transformers in float32 on a folder that it loads.

    Raises
    ------
    PretraceError
        If transformers refuses the folder, or reports a tensor that is missing, left over, or of another shape.
    ImportError
        If it is not installed.
    """
    import torch
    import transformers

    model, about = _loaded(transformers, folder, torch.float32)
    wrong = {key: value for key, value in about.items() if value and key != "error_msgs"}
    if wrong:
        said = "; ".join(f"{key}: {', '.join(sorted(map(str, value))[:3])}" for key, value in wrong.items())
        raise PretraceError(f"transformers does not load it whole ({said})", str(folder), "convert with all tensors")
    with torch.no_grad():
        made = model.eval()(torch.from_numpy(tokens)).logits.double().numpy()
    return Voice(side, f"transformers {transformers.__version__}", made)


def _loaded(transformers: Any, folder: Path, dtype: Any) -> Any:
    """The model and what transformers says about loading it, without its progress bars."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    was = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, local_files_only=True
        )
    except Exception as error:  # it raises whatever its parts raise: OSError, RuntimeError, validation errors ...
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise PretraceError(f"transformers does not load it: {said}", str(folder), "mend its config.json") from error
    finally:
        logging.set_verbosity(was)


def distance(voice: Voice, reference: Voice, rows: int) -> Distance:
    """How far `voice` is from `reference` over the first `rows` of the vocabulary (padding left out)."""
    a, b = reference.logits[..., :rows], voice.logits[..., :rows]
    if a.shape != b.shape or not np.isfinite(b).all():
        return Distance(voice.side, voice.by, math.inf, math.inf, False)
    top = np.abs(a).max(-1).astype(np.float32)
    ulps = np.abs(a - b).max(-1) / np.spacing(np.maximum(top, np.finfo(np.float32).tiny))
    p, q = log_softmax(a), log_softmax(b)
    kl = float((np.exp(p) * (p - q)).sum(-1).mean())
    same = bool((a.astype(np.float32) == b.astype(np.float32)).all())
    return Distance(voice.side, voice.by, float(ulps.max()), max(kl, 0.0), same)


def mean_loss(logits: Logits, targets: NDArray[np.int64]) -> float:
    """Mean cross entropy in nats of `targets` [B, T] under `logits` [B, T, V]."""
    picked = np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)
    return float(-picked.mean())


def fits_in_memory(spec: ModelSpec, copies: int = 2) -> bool:
    """Whether `copies` float32 copies of the model fit into three quarters of what the machine has left."""
    from pretrace.model.spec import n_params

    return copies * 4 * n_params(spec) < 0.75 * _available()


def _available() -> float:
    try:
        with open("/proc/meminfo") as file:
            line: Any = next(row for row in file if row.startswith("MemAvailable"))
        return float(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return math.inf  # not Linux: the system says when it is too much
