"""From kept vectors to inner products: one pass over the parameters at each step, tensor by tensor.

The products of a tensor are kept apart until they are summed, so that the same pass also gives the localiser. All differences
are taken from the published start, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.dtypes import to_float
from pretrace.errors import PretraceError
from pretrace.provenance import START, Gram, gram_of
from pretrace.retrace.series import Segment

REFERENCE = "reference"
_BLOCK = 1 << 16  # elements a row: 46 rows of float64 are 24 MiB


def products(
    start: Path, rows: Mapping[str, Path], segments: Sequence[Segment], dtype: str
) -> tuple[Gram, dict[str, Gram]]:
    """The inner products of all updates, whole and by tensor.

    Parameters
    ----------
    start : flat vector of the published step 0.
    rows : name -> flat vector at one step, all in the published dtype.

    Raises
    ------
    PretraceError
        If a vector has not as many elements as the layout says.
    """
    first = _mapped(start, segments)
    vectors = {name: _mapped(path, segments) for name, path in rows.items()}
    names = (START, *vectors)
    by_tensor = {
        segment.name: gram_of(names, _blocks(first, list(vectors.values()), segment, dtype)) for segment in segments
    }
    whole = Gram(names, np.sum([gram.products for gram in by_tensor.values()], axis=0), segments[-1].stop)
    return whole, by_tensor


def _mapped(path: Path, segments: Sequence[Segment]) -> NDArray[Any]:
    vector: NDArray[Any] = np.load(path, mmap_mode="r")
    if vector.shape != (segments[-1].stop,):
        raise PretraceError(
            f"{vector.size:,} parameters where the reference has {segments[-1].stop:,}", str(path),
            "the recipe's model is not the reference's: correct it",
        )  # fmt: skip
    return vector


def _blocks(
    first: NDArray[Any], vectors: Sequence[NDArray[Any]], segment: Segment, dtype: str
) -> Iterator[NDArray[np.float64]]:
    for a in range(segment.start, segment.stop, _BLOCK):
        b = min(a + _BLOCK, segment.stop)
        start = to_float(first[a:b], dtype).astype(np.float64)
        block = np.empty((1 + len(vectors), b - a))
        block[0] = start
        for row, vector in enumerate(vectors, 1):
            np.subtract(to_float(vector[a:b], dtype), start, out=block[row])
        yield block
