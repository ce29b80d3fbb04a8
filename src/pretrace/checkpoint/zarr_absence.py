"""Chunks that should be there and are not: how many, along which axis, and what that looks like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pretrace.checkpoint.faults import said
from pretrace.checkpoint.zarr_array import ZarrArray
from pretrace.findings import Finding


@dataclass(frozen=True, slots=True)
class Absence:
    """The chunks of one array that are not there."""

    array: str
    n_absent: int
    n_chunks: int
    axis: int | None  # the axis along which whole slices are absent; None if they do not line up
    first: int  # first and last absent index along that axis
    last: int
    share: float  # of the elements, which read as zeros

    along: int = 0  # chunks on that axis

    @property
    def part(self) -> str:
        """In words: `chunks 1 to 3 of 4`."""
        if self.axis is None:
            return f"{self.n_absent} of {self.n_chunks} chunks"
        return f"chunks {self.first} to {self.last} of {self.along}"


def absence(array: ZarrArray, there: frozenset[str]) -> Absence | None:
    """What is absent of one array; None if nothing is. `there` holds full keys."""
    keys = array.chunk_keys()
    prefix = array.name + "/" if array.name else ""
    absent = [index for key, index in keys.items() if prefix + key not in there]
    if not absent or not math.prod(array.shape):
        return None
    lost = sum(math.prod(min(c, n - i * c) for i, c, n in zip(index, array.chunks, array.shape)) for index in absent)
    share = lost / math.prod(array.shape)
    for axis, n in enumerate(array.grid):
        along = sorted({index[axis] for index in absent})
        whole = len(along) * math.prod(array.grid) // n == len(absent)
        if whole and along == list(range(along[0], along[-1] + 1)) and (len(along) < n or len(keys) == 1):
            return Absence(array.name, len(absent), len(keys), axis, along[0], along[-1], share, n)
    return Absence(array.name, len(absent), len(keys), None, 0, 0, share)


def absence_findings(
    arrays: Mapping[str, ZarrArray], there: frozenset[str], where: str, *, zeros_are_stored: bool, writers: list[str]
) -> list[Finding]:
    """One finding for all arrays with absent chunks.

    With `zeros_are_stored` (Orbax writes chunks of zeros too) absent means lost. Otherwise a chunk of zeros may have been left
    out, so arrays that are absent as a whole are only warned of.
    """
    lost = {name: a for name, array in arrays.items() if (a := absence(array, there)) is not None}
    if not lost:
        return []
    partial = {name: a for name, a in lost.items() if a.n_absent < a.n_chunks}
    severe = zeros_are_stored or bool(partial)
    what, example = _words(partial or lost, lost, arrays)
    if len(writers) == 1:
        what += f"; the only writer here is {writers[0]}"
    mend = (
        "check that all hosts wrote to one file system; fetch the parts of the other hosts"
        if severe
        else "harmless if these arrays are zero"
    )
    evidence = {
        name: {
            "absent": a.n_absent,
            "chunks": a.n_chunks,
            "axis": a.axis,
            "first": a.first,
            "last": a.last,
            "share": a.share,
        }
        for name, a in list(lost.items())[:500]
    }
    return [
        said(
            "chunks-absent",
            "error" if severe else "warning",
            what,
            f"{where}: {example}",
            mend,
            arrays=evidence,
            writers=writers,
        )
    ]


def _words(shown: dict[str, Absence], lost: dict[str, Absence], arrays: Mapping[str, ZarrArray]) -> tuple[str, str]:
    """What is absent in words, and the largest array with the most usual part absent."""
    part, n_same = Counter(a.part for a in shown.values()).most_common(1)[0]
    example = max((n for n, a in shown.items() if a.part == part), key=lambda n: math.prod(arrays[n].shape))
    first = shown[example]
    on_axis = "" if first.axis is None else f" on axis {first.axis}"
    what = f"{part}{on_axis} are absent in {example} ({first.share:.0%} of its values read as 0)"
    what += f"; the same share in {n_same} of {len(arrays)} arrays" if n_same > 1 else ""
    return what + (f", others in {len(lost) - n_same}" if len(lost) > n_same else ""), example
