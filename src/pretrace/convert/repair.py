"""Writes what a checkpoint lacks from another copy of the model, and nothing else; proves that the result is that model.

What is there has to be the source's, element for element: a part of another step is refused, not mixed in. Mended are shards
that an index names, files that pretrace wrote (conversion.json has their hashes), chunks of zarr arrays and OCDBT databases.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrace.audit import checkpoint
from pretrace.checkpoint.detect import survey
from pretrace.checkpoint.fill import fill
from pretrace.checkpoint.layout import Layout, PlannedFile
from pretrace.checkpoint.layout_hf import safetensors_file
from pretrace.checkpoint.names import best_table, is_state
from pretrace.checkpoint.optimizer_names import chosen, weights_of
from pretrace.checkpoint.recorded import NAME, as_recorded
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.zarr_view import ZarrView
from pretrace.convert.likeness import can_be_told, in_dtype_of, like, same_values
from pretrace.convert.plan import plan
from pretrace.convert.record import hashes_of, plain
from pretrace.convert.repair_chunks import gaps_of, write_chunks
from pretrace.convert.request import Request
from pretrace.convert.roundtrip import round_trip
from pretrace.convert.source import Source, open_source
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file, write_json
from pretrace.spec import build

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
            written, wanted = _by_record(target, opened, advance)
        elif index := next(iter(sorted(target.glob("*.safetensors.index.json"))), None):
            written, wanted = _by_index(target, index, opened, advance)
        else:
            written, wanted = _by_chunks(target, opened, None, advance)
        elements = _proved(target, opened, wanted, threads)
    finally:
        opened.close()
    return Repaired(str(target), tuple(written), sum(written.values()), elements)


def _nothing(target: Path) -> PretraceError:
    return PretraceError("nothing that can be written anew is missing here", str(target),
                         "audit it: values that are there and wrong are not mended, convert again from the source")  # fmt: skip


# Where pretrace wrote the target, its record says which request made it, and the hash of every file.


def _by_record(target: Path, opened: Source, advance: Advance) -> tuple[dict[str, int], StateView]:
    record = json.loads((target / NAME).read_text())
    if "request" not in record:
        where = str(target / NAME)
        raise PretraceError("the record beside the checkpoint is of a merge", where, "merge the folders again")
    planned = plan(opened, build(Request, record["request"], where=NAME))
    layout, wanted = planned.layout, weights_of(planned.wanted)
    known = record["files"]
    bad = {name for name, about in known.items() if not as_recorded(target / name, about)}
    if not bad:
        raise _nothing(target)
    if not isinstance(layout, Layout):
        made = _by_chunks(target, opened, wanted, advance)
        _note_database(target, record)
        return made
    files = {file.path: file for file in layout.files}
    if lost := sorted(bad - files.keys()):
        raise PretraceError(
            f"{lost[0]} cannot be made from the source", str(target / lost[0]), "copy it from elsewhere"
        )
    written = {}
    for name in sorted(bad):
        written[name] = _write_file(target, files[name], layout.sources, advance)
        if not as_recorded(target / name, known[name]):
            (target / name).unlink()
            raise PretraceError(f"{name} made from this source is not the file that was there", str(target / name),
                                "repair from the checkpoint that it was converted from")  # fmt: skip
    return written, wanted


def _note_database(target: Path, record: dict[str, Any]) -> None:
    """The record after chunks came into a database: it only grows, so files that were there stay as they were recorded."""
    known = record["files"]
    grown = {n: about for n, about in hashes_of(target).items() if n not in known or n.endswith("manifest.ocdbt")}
    write_json(target / NAME, {**record, "files": known | grown})


def _write_file(target: Path, file: PlannedFile, sources: StateView, advance: Advance) -> int:
    path = target / file.path
    with naming(path, "writing"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "w+b") as out:
        fill(out, file, sources, advance)
    return file.size_bytes


# Shards of transformers' folders: the index says which tensors a missing file held.


def _by_index(target: Path, index: Path, opened: Source, advance: Advance) -> tuple[dict[str, int], StateView]:
    places: dict[str, str] = json.loads(index.read_text())["weight_map"]
    seen = survey(target)
    damaged = {Path(str(f.where).split(":")[0]).name for f in seen.findings if f.severity == "error"}
    missing = sorted({f for f in places.values() if not (target / f).is_file() or f in damaged})
    if not missing or seen.view is None:
        raise _nothing(target)
    with seen.view as there:
        can_be_told(there)
        wanted = in_dtype_of(there, opened)
        theirs = like(there, wanted, opened, tuple(places))
        kept = [n for n in there.names() if n in places and places[n] not in missing]
        same_values(there, theirs, kept, str(target))
    written = {}
    for name in missing:
        held = tuple(n for n in theirs.names() if places.get(n) == name)
        written[name] = _write_file(target, safetensors_file(name, theirs, held, {"format": "pt"}), theirs, advance)
    return written, wanted


# Chunks of zarr arrays.


def _by_chunks(
    target: Path, opened: Source, wanted: StateView | None, advance: Advance
) -> tuple[dict[str, int], StateView]:
    """`wanted`: what a record says that the target holds; None where there is none: the source's weights."""
    seen = survey(target)
    view = seen.view
    if not isinstance(view, ZarrView):
        if view is not None:
            view.close()
        raise _nothing(target)
    with view:
        if not any(gaps_of(view).values()):
            raise _nothing(target)
        there = chosen(view, (name for name in view.names() if not is_state(name)))
        can_be_told(there)
        wanted = wanted or in_dtype_of(there, opened)
        return write_chunks(target, view, like(there, wanted, opened, ()), advance), wanted


def _proved(target: Path, opened: Source, wanted: StateView, threads: int) -> int:
    """Reads the target as a whole and compares every weight with what it has to hold; the number of elements.

    Raises
    ------
    PretraceError
        If something is still missing, is not the source's, or the configuration beside it is of another model.
    """
    back = open_source(target, None) if _says_its_model(target) else _opened_as(target, opened)
    try:
        trip = round_trip(wanted, weights_of(back.view), best_table(back.raw), threads, lambda n: None)
        if trip.wrong:
            what = f"the repaired checkpoint is not the source: {trip.wrong[0].name} {trip.wrong[0].why}"
            raise PretraceError(what, str(target), "convert again from the source")
        _same_model(target, opened, back)
    finally:
        back.close()
    errors = [f for f in checkpoint(target, threads=threads).findings if f.severity == "error"]
    if errors:
        raise PretraceError(
            f"the repaired checkpoint is not sound: {errors[0].what}", errors[0].where, "audit the source"
        )
    return trip.elements


def _same_model(target: Path, opened: Source, back: Source) -> None:
    """The same weights under another rotary base or epsilon are another model."""
    ours, theirs = opened.model.spec.model_dump(), back.model.spec.model_dump()
    free = {
        "dropout",
        "init",
        "vocab_size",
        "max_seq_len",
    }  # rows of padding, and a length that rotary models do not have
    for key in (k for k in ours if k not in free and ours[k] != theirs[k]):
        raise PretraceError(
            f"its tensors are the source's, but its configuration says {key} {theirs[key]}, the source has {ours[key]}",
            str(target), "restore its configuration (config.json, or the framework's settings)",
        )  # fmt: skip


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
