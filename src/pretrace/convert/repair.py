"""Writes what a checkpoint lacks from another copy of the model, and nothing else; proves that the result is that model.

What is there has to be the source's, element for element: a part of another step is refused, not mixed in. Mended are shards
that an index names, files that pretrace wrote (conversion.json has their hashes), chunks of zarr arrays and OCDBT databases.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.audit import checkpoint
from pretrace.checkpoint.detect import open_folder, survey
from pretrace.checkpoint.fill import fill
from pretrace.checkpoint.layout import Layout, PlannedFile
from pretrace.checkpoint.layout_hf import safetensors_file
from pretrace.checkpoint.names import best_table, is_state, relabel
from pretrace.checkpoint.optimizer_names import chosen, weights_of
from pretrace.checkpoint.orbax_folder import find_item
from pretrace.checkpoint.view import StateView, read_all
from pretrace.checkpoint.zarr_array import ZarrArray, tensorstore
from pretrace.checkpoint.zarr_keys import OcdbtKeys
from pretrace.checkpoint.zarr_view import ZarrView
from pretrace.convert.cast import CastView
from pretrace.convert.plan import plan
from pretrace.convert.record import NAME, plain
from pretrace.convert.request import Request
from pretrace.convert.roundtrip import round_trip
from pretrace.convert.source import Source, open_source
from pretrace.digest import xxh3_of_file
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file, write_json
from pretrace.spec import build

_BLOCK = 1 << 20
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Repaired:
    """What was missing, now written."""

    target: str
    written: tuple[str, ...]  # files, or chunks as `array/index`
    bytes: int
    elements: int  # compared with the source afterwards

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"target": self.target, "written": self.written, "bytes": self.bytes, "tensors": len(self.written),
                "proof": {"round_trip": "bitwise", "elements": self.elements}}  # fmt: skip


def repair(
    target: Path, source: str, threads: int, *, model: Path | None = None, advance: Advance = lambda n: None
) -> Repaired:
    """Rewrites what `target` lacks from `source`, in place: each file or chunk appears whole or not at all.

    Raises
    ------
    PretraceError
        If the source is not whole, the target holds other values, or nothing known is missing.
    """
    if not target.is_dir():
        raise PretraceError("the checkpoint to repair is no folder", str(target), "name its folder")
    opened = open_source(source, model)
    try:
        if (target / NAME).is_file():
            written = _by_record(target, opened, advance)
        elif index := next(iter(sorted(target.glob("*.safetensors.index.json"))), None):
            written = _by_index(target, index, opened, advance)
        else:
            written = _by_chunks(target, opened, advance)
        elements = _proved(target, opened, threads)
    finally:
        opened.close()
    return Repaired(str(target), tuple(written), sum(written.values()), elements)


def _nothing(target: Path) -> PretraceError:
    return PretraceError("nothing that can be written anew is missing here", str(target),
                         "audit it: values that are there and wrong are not mended, convert again from the source")  # fmt: skip


# Where pretrace wrote the target, its record says which request made it, and the hash of every file.


def _by_record(target: Path, opened: Source, advance: Advance) -> dict[str, int]:
    record = json.loads((target / NAME).read_text())
    if "request" not in record:
        where = str(target / NAME)
        raise PretraceError("the record beside the checkpoint is of a merge", where, "merge the folders again")
    layout = plan(opened, build(Request, record["request"], where=NAME)).layout
    known = record["files"]
    bad = {name for name, about in known.items() if not _as_recorded(target / name, about)}
    if not bad:
        raise _nothing(target)
    if not isinstance(layout, Layout):
        return _by_chunks(target, opened, advance)
    planned = {file.path: file for file in layout.files}
    if lost := sorted(bad - planned.keys()):
        raise PretraceError(
            f"{lost[0]} cannot be made from the source", str(target / lost[0]), "copy it from elsewhere"
        )
    written = {}
    for name in sorted(bad):
        written[name] = _write_file(target, planned[name], layout.sources, advance)
        if not _as_recorded(target / name, known[name]):
            (target / name).unlink()
            raise PretraceError(f"{name} made from this source is not the file that was there", str(target / name),
                                "repair from the checkpoint that it was converted from")  # fmt: skip
    return written


def _as_recorded(path: Path, about: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == about["size_bytes"] and xxh3_of_file(path) == about["xxh3"]


def _write_file(target: Path, file: PlannedFile, sources: StateView, advance: Advance) -> int:
    path = target / file.path
    with naming(path, "writing"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "w+b") as out:
        fill(out, file, sources, advance)
    return file.size_bytes


# Shards of transformers' folders: the index says which tensors a missing file held.


def _by_index(target: Path, index: Path, opened: Source, advance: Advance) -> dict[str, int]:
    places: dict[str, str] = json.loads(index.read_text())["weight_map"]
    seen = survey(target)
    damaged = {Path(str(f.where).split(":")[0]).name for f in seen.findings if f.severity == "error"}
    missing = sorted({f for f in places.values() if not (target / f).is_file() or f in damaged})
    if not missing or seen.view is None:
        raise _nothing(target)
    with seen.view as there:
        theirs = _like(there, opened, tuple(places))
        kept = [n for n in there.names() if n in places and places[n] not in missing]
        _same_values(there, theirs, kept, str(target))
    written = {}
    for name in missing:
        held = tuple(n for n in theirs.names() if places.get(n) == name)
        written[name] = _write_file(target, safetensors_file(name, theirs, held, {"format": "pt"}), theirs, advance)
    return written


def _like(there: StateView, opened: Source, names: tuple[str, ...]) -> StateView:
    """The source under the names, in the layout and the dtype of the target."""
    table = best_table(there)
    if table is None or not there.names():
        raise PretraceError(
            "too little is left of it to tell its layout", there.format, "convert again from the source"
        )
    kinds = {there.info(name).dtype for name in there.names() if dtype(there.info(name).dtype).kind == "float"}
    weights = weights_of(opened.view)
    stored = {weights.info(name).dtype for name in weights.names()}
    if len(kinds) > 1 and kinds != stored:
        several = ", ".join(sorted(kinds))
        raise PretraceError(f"it has several dtypes ({several})", there.format, "convert again from the source")
    wanted = weights if kinds == stored else CastView(weights, next(iter(kinds)))
    theirs = relabel(wanted, table, opened.model.spec)
    if lost := sorted(set(names) - set(theirs.names())):
        what = f"the source has no {lost[0]} ({len(lost)} tensors)"
        raise PretraceError(what, opened.path, "name the source of this checkpoint")
    return theirs


def _same_values(there: StateView, theirs: StateView, names: list[str], where: str) -> None:
    """Refuses to mix two checkpoints: what is there has to be the source's."""
    for name in names:
        a, b = there.info(name), theirs.info(name)
        same = a.shape == b.shape and a.dtype == b.dtype
        for start in range(0, a.numel if same else 0, _BLOCK):
            stop = min(start + _BLOCK, a.numel)
            same = same and there.read(name, start, stop).tobytes() == theirs.read(name, start, stop).tobytes()
        if not same:
            raise PretraceError(f"{name} is there and is not the source's: another step, or another model", where,
                                "repair from the checkpoint that it was made from")  # fmt: skip


# Chunks of zarr arrays, as files or as entries of an OCDBT database.


def _by_chunks(target: Path, opened: Source, advance: Advance) -> dict[str, int]:
    seen = survey(target)
    view = seen.view
    if not isinstance(view, ZarrView):
        if view is not None:
            view.close()
        raise _nothing(target)
    with view:
        gaps = {name: view.absent(name) for name in view.names()}
        if not any(gaps.values()):
            raise _nothing(target)
        theirs = _like(_weights(view), opened, ())
        names = set(theirs.names())
        if lost := sorted(name for name, chunks in gaps.items() if chunks and name not in names):
            raise PretraceError(f"the source has no {lost[0]}", opened.path, "name a source with the optimizer's state")
        _same_chunks(view, theirs, gaps, str(target))
        item = find_item(open_folder(target), open_folder(target).sizes())
        assert item is not None
        return dict(_write_chunks(Path(item.name), view, theirs, gaps, advance))


def _weights(view: StateView) -> StateView:
    return chosen(view, (name for name in view.names() if not is_state(name)))


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


def _proved(target: Path, opened: Source, threads: int) -> int:
    """Reads the target as a whole and compares every weight with the source's; the number of elements.

    Raises
    ------
    PretraceError
        If something is still missing, or is not the source's.
    """
    back = open_source(target, None) if _says_its_model(target) else _opened_as(target, opened)
    try:
        ours, theirs = weights_of(opened.view), weights_of(back.view)
        kinds = {theirs.info(n).dtype for n in theirs.names()}
        wanted = ours if kinds == {ours.info(n).dtype for n in ours.names()} else CastView(ours, kinds.pop())
        trip = round_trip(wanted, theirs, best_table(back.raw), threads, lambda n: None)
        if trip.wrong:
            what = f"the repaired checkpoint is not the source: {trip.wrong[0].name} {trip.wrong[0].why}"
            raise PretraceError(what, str(target), "convert again from the source")
    finally:
        back.close()
    errors = [f for f in checkpoint(target, threads=threads).findings if f.severity == "error"]
    if errors:
        raise PretraceError(
            f"the repaired checkpoint is not sound: {errors[0].what}", errors[0].where, "audit the source"
        )
    return trip.elements


def _says_its_model(target: Path) -> bool:
    return any(target.rglob("config.json"))


def _opened_as(target: Path, opened: Source) -> Source:
    """The target, read as the source's model where it has no configuration of its own."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as place:
        model = Path(place) / "model.json"
        write_json(model, plain(opened.model.spec.model_dump(mode="json")))
        made = open_source(target, model)
    return made
