"""Absent chunks of zarr arrays written from another copy: as files, or as entries of an OCDBT database."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.detect import open_folder
from pretrace.checkpoint.orbax_folder import find_item
from pretrace.checkpoint.view import StateView, read_all
from pretrace.checkpoint.zarr_array import ZarrArray, tensorstore
from pretrace.checkpoint.zarr_keys import OcdbtKeys
from pretrace.checkpoint.zarr_view import ZarrView
from pretrace.errors import PretraceError

Advance = Callable[[int], None]


def gaps_of(view: ZarrView) -> dict[str, set[tuple[int, ...]]]:
    """The chunks of each array that nobody wrote."""
    return {name: view.absent(name) for name in view.names()}


def write_chunks(target: Path, view: ZarrView, theirs: StateView, advance: Advance) -> dict[str, int]:
    """Writes all absent chunks from `theirs`, the source under the target's names; `array/chunk` -> bytes.

    Raises
    ------
    PretraceError
        If a chunk is absent that the source has not, or one that is there is not the source's.
    """
    gaps = gaps_of(view)
    names = set(theirs.names())
    if lost := sorted(name for name, chunks in gaps.items() if chunks and name not in names):
        raise PretraceError(f"the source has no {lost[0]}", str(target), "name a source with the optimizer's state")
    _same_chunks(view, theirs, gaps, str(target))
    item = find_item(open_folder(target), open_folder(target).sizes())
    assert item is not None
    return dict(_write_chunks(Path(item.name), view, theirs, gaps, advance))


def _same_chunks(view: ZarrView, theirs: StateView, gaps: dict[str, set[tuple[int, ...]]], where: str) -> None:
    for name in theirs.names():
        array = view.array(name)
        there, ours = read_all(view, name), read_all(theirs, name)
        for index in itertools.product(*map(range, array.grid)):
            part = _part(array, index)
            if index not in gaps[name] and there[part].tobytes() != ours[part].tobytes():
                raise PretraceError(f"{name} is there and is not the source's: another step, or another model", where,
                                    "repair from the checkpoint that it was made from")  # fmt: skip


def _part(array: ZarrArray, index: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(index, array.chunks, array.shape, strict=True))


def _write_chunks(
    item: Path, view: ZarrView, theirs: StateView, gaps: dict[str, set[tuple[int, ...]]], advance: Advance
) -> Iterator[tuple[str, int]]:
    ts = tensorstore(str(item))
    database = _one_database(item)
    for name in (n for n in theirs.names() if gaps[n]):
        array = view.array(name)
        store: dict[str, Any] = {"driver": "file", "path": f"{item.absolute()}/{array.name}/"}
        if database:
            store = {"driver": "ocdbt", "base": f"file://{item.absolute()}/", "path": f"{array.name}/"}
        spec = {"driver": "zarr", "kvstore": store, "store_data_equal_to_fill_value": True}
        opened = ts.open(spec, open=True).result()
        values = read_all(theirs, name)
        for index in sorted(gaps[name]):
            part = _part(array, index)
            opened[part].write(_typed(values[part], array.dtype)).result()
            size = math.prod(s.stop - s.start for s in part) * values.itemsize
            advance(size)
            yield f"{name}/{array.key(index)}", size


def _one_database(item: Path) -> bool:
    """Whether the arrays lie in an OCDBT database; entries of processes that were never merged come into the common one."""
    parts = sorted(item.glob("ocdbt.process_*/manifest.ocdbt"))
    if (item / "manifest.ocdbt").is_file() or not parts:
        return (item / "manifest.ocdbt").is_file()
    keys = OcdbtKeys([f"file://{part.parent.absolute()}/" for part in parts], str(item))
    store = tensorstore(str(item)).KvStore.open({"driver": "ocdbt", "base": f"file://{item.absolute()}/"}).result()
    for key in sorted(keys.listed()):
        store.write(key, keys.read(key)).result()
    return True


def _typed(block: NDArray[Any], name: str) -> NDArray[Any]:
    if name != "bfloat16":
        return np.ascontiguousarray(block)
    import ml_dtypes

    return np.ascontiguousarray(block).view(ml_dtypes.bfloat16)
