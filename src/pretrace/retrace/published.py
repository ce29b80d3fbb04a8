"""What was published, flattened: the parameters of a series at the steps that a case reads, one file a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretrace.checkpoint.view import StateView
from pretrace.digest import xxh3_of_file
from pretrace.dtypes import dtype, from_float32
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file
from pretrace.retrace.parts import Reference
from pretrace.retrace.runs import vector_path, write_vector
from pretrace.retrace.series import Segment, flat, open_canonical, segments_of, steps_in
from pretrace.runlog import Record, records


@dataclass(frozen=True, slots=True)
class Published:
    """A series as it was published: step -> file of its flat vector, the start among them."""

    reference: Reference
    vectors: dict[int, Path]
    segments: tuple[Segment, ...]
    first: int  # the step that replays start from
    start: Path  # its checkpoint
    log: tuple[Record, ...]

    @property
    def origin(self) -> Path:
        """The flat vector that updates are counted from."""
        return self.vectors[self.first]


def read_reference(reference: Reference, first: int, steps: Sequence[int], keep: Path) -> Published:
    """The published parameters at the step `first` and at `steps`, flattened under `keep`.

    Raises
    ------
    PretraceError
        If a step is missing or cannot be read, or is stored in a coarser dtype than was declared.
    """
    there = steps_in(reference.checkpoints)
    missing = [step for step in (first, *steps) if step not in there]
    if missing:
        raise PretraceError(
            f"the series has no step {', '.join(map(str, missing))}; it has {', '.join(map(str, there))}",
            reference.checkpoints, "add the checkpoints, or declare steps that are there (the start is always needed)",
        )  # fmt: skip
    with open_canonical(there[first]) as view:
        segments = segments_of(view)
        _as_fine_as_declared(view, reference)
    with naming(keep, "making the folder"):
        keep.mkdir(parents=True, exist_ok=True)
    vectors = {}
    for step in (first, *steps):
        vectors[step] = vector_path(keep, step)
        with open_canonical(there[step]) as view, atomic_file(vectors[step]) as file:
            write_vector(file, from_float32(flat(view, segments).astype(np.float32), reference.dtype))
    log = Path(reference.checkpoints).parent / "log.jsonl"
    return Published(reference, vectors, segments, first, there[first], tuple(records(log)) if log.is_file() else ())


def _as_fine_as_declared(view: StateView, reference: Reference) -> None:
    """Predictions are rounded as the reference was: finer than its files they would score far below what they are worth."""
    declared = dtype(reference.dtype)
    for name in view.names():
        stored = dtype(view.info(name).dtype)
        if stored.kind == "float" and stored.mantissa_bits < declared.mantissa_bits:
            raise PretraceError(
                f"{name} is stored in {stored.name}, and the case declares {declared.name}", reference.checkpoints,
                f"declare `dtype: {stored.name}`, or name checkpoints in {declared.name}",
            )  # fmt: skip


def read_what_is_there(reference: Reference, first: int, steps: Sequence[int], keep: Path) -> Published:
    """As `read_reference`, with those of `steps` that the series has; the start is always needed."""
    there = steps_in(reference.checkpoints)
    return read_reference(reference, first, [step for step in steps if step in there], keep)


def same_vector(a: Path, b: Path) -> bool:
    """Whether two flat vectors hold the same bits."""
    return xxh3_of_file(a) == xxh3_of_file(b)
