"""The steps of a run on disk: which step a path is, and which steps a folder holds."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pretrace.checkpoint.detect import series_of

_STEP = re.compile(r"(?:^|[^a-z])(?:step|iter|global_step|checkpoint)[-_]?0*(\d+)(?:\D|$)", re.IGNORECASE)
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")  # a step may be a single file


def step_of(path: str) -> int | None:
    """The step in the last part of a path that has one.

    >>> step_of("runs/pythia/step143000"), step_of("ckpt/iter_0000100"), step_of("model")
    (143000, 100, None)
    """
    for part in reversed(path.replace("\\\\", "/").rstrip("/").split("/")[-2:]):
        if found := _STEP.search(part):
            return int(found[1])
    return None


def steps_in(path: str | os.PathLike[str]) -> dict[int, str]:
    """The checkpoints of a folder by step: its subfolders and files that have a step in their name.

    Of a repository on a hub without a revision (`hf://org/name`), its branches, pinned to their commits.
    """
    if os.fspath(path).startswith("hf://"):
        return {} if "@" in os.fspath(path) else _branches(os.fspath(path))
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if not folder.is_dir():
        return {}
    found: dict[int, str] = {}
    for child in sorted(folder.iterdir()):
        step = step_of(child.name)
        holds = child.is_dir() or child.suffix in WEIGHTS
        if step is not None and holds and not child.name.startswith("."):
            found[step] = str(child)
    return dict(sorted(found.items()))


def _branches(address: str) -> dict[int, str]:
    named = ((step_of(branch), where) for branch, where in series_of(address).items())
    return dict(sorted((step, where) for step, where in named if step is not None))
