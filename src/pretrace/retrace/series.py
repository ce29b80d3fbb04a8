"""A series of checkpoints of one run: which steps there are, and their parameters as one flat vector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint import canonical, open_state
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import to_float
from pretrace.errors import PretraceError, naming

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a tensor stands in the flat vector: elements [start, stop)."""

    name: str
    start: int
    stop: int


def steps_in(folder: str | Path) -> dict[int, Path]:
    """Step -> checkpoint of a series: the digits at the end of a name (before its ending) are the step.

    Raises
    ------
    PretraceError
        If the folder cannot be read, holds no checkpoint, or two names stand for one step.
    """
    found: dict[int, Path] = {}
    with naming(folder, "reading the series"):
        entries = sorted(Path(folder).iterdir())
    for entry in entries:
        match = re.search(r"(\d+)(\.\w+)?$", entry.name)
        if entry.name.startswith(".") or not match or not (entry.is_dir() or entry.suffix):
            continue
        step = int(match.group(1))
        if step in found:
            raise PretraceError(
                f"{found[step].name} and {entry.name} both stand for step {step}", str(folder), "keep one of them"
            )
        found[step] = entry
    if not found:
        raise PretraceError(
            "there is no checkpoint in the folder",
            str(folder),
            "name a folder with one checkpoint a step, such as step-00000016",
        )
    return dict(sorted(found.items()))


def open_canonical(path: str | Path) -> StateView:
    """The checkpoint at `path` under canonical names, whatever its format."""
    return canonical(open_state(path))


def segments_of(view: StateView) -> tuple[Segment, ...]:
    """All tensors one after another, sorted by name: the layout of the flat vector."""
    segments, start = [], 0
    for name in sorted(view.names()):
        stop = start + view.info(name).numel
        segments.append(Segment(name, start, stop))
        start = stop
    return tuple(segments)


def blocks_of(view: StateView, segments: tuple[Segment, ...]) -> Iterator[NDArray[Any]]:
    """The flat vector block by block, widened exactly to float32 or wider; no block spans two tensors."""
    for segment in segments:
        numel = segment.stop - segment.start
        stored = view.info(segment.name).dtype
        for start in range(0, numel, _BLOCK):
            yield to_float(view.read(segment.name, start, min(start + _BLOCK, numel)), stored)


def flat(view: StateView, segments: tuple[Segment, ...]) -> NDArray[Any]:
    """The whole flat vector: for models that fit in memory."""
    return np.concatenate([np.asarray(block) for block in blocks_of(view, segments)])


def vector_blocks(path: Path, dtype: str) -> Iterator[NDArray[Any]]:
    """A kept flat vector block by block, widened exactly: a model of billions is never whole in memory."""
    vector = np.load(path, mmap_mode="r")
    for start in range(0, len(vector), _BLOCK):
        yield to_float(vector[start : start + _BLOCK], dtype)
