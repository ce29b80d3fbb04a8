"""Joins the per-host folders of one save that went to separate disks, and proves that nothing is missing.

Each host's folder holds its part: chunks of zarr arrays, an OCDBT database of its own, shards, `.distcp` files. Parts are put
together file by file (OCDBT: entry by entry). A name that two folders hold with other bytes is of two saves, and refused; what no
folder holds is named. The result appears only when it reads as a whole checkpoint with the bytes of its parts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrace.audit import checkpoint
from pretrace.checkpoint.detect import survey
from pretrace.checkpoint.recorded import NAME
from pretrace.checkpoint.zarr_array import tensorstore
from pretrace.checkpoint.zarr_keys import OcdbtKeys
from pretrace.convert.record import hashes_of, plain
from pretrace.convert.target import check_target, locked_work, publish
from pretrace.digest import xxh3_of_file
from pretrace.errors import PretraceError, from_os_error, naming
from pretrace.files import write_json

_DATABASE = re.compile(
    r"(?P<item>(?:(?!ocdbt\.process_)[^/]+/)*)(?:ocdbt\.process_\d+/)?(?:manifest\.ocdbt|d/[0-9a-f]{32})"
)
_MANIFEST = "manifest.ocdbt"
# Notes of one process that no reader of tensors needs; they may differ between hosts.
_NOTES = re.compile(
    r"(.*/)?(_CHECKPOINT_METADATA|commit_success\.txt|\.pretrace-.*|pretrace-journal.*|conversion\.json)"
)
Listed = dict[str, Path]  # files of a folder by their name below it
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Merged:
    """A whole checkpoint made of parts."""

    target: str
    format: str
    tensors: int
    bytes: int
    parts: tuple[dict[str, Any], ...]  # folder and how many files (entries) it gave
    one_save: bool  # a record in the parts says that all of them are of one save; False: nothing tells

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"target": self.target, "format": self.format, "tensors": self.tensors, "bytes": self.bytes,
                "parts": self.parts, "one_save": self.one_save, "proof": {"round_trip": "bitwise"}}  # fmt: skip


def merge(
    folders: Sequence[str], target: Path, threads: int, *, damaged: bool = False, advance: Advance = lambda n: None
) -> Merged:
    """Joins `folders` to a checkpoint at `target`.

    Raises
    ------
    PretraceError
        If parts are missing or of two saves; then there is no target.
    """
    if len(folders) < 2:
        raise PretraceError("one folder is nothing to merge", " ".join(folders), "name the folders of all hosts")
    for folder in folders:
        if not Path(folder).is_dir():
            raise PretraceError("a part to merge is no folder", folder, "name the folders of all hosts")
        check_target(folder, target)
    files = _files(folders)
    one_save = _of_one_save(folders, files)
    try:
        with locked_work(target) as work:
            try:
                shutil.rmtree(work)
                work.mkdir()
                given = _join(folders, files, work, threads, advance)
                made = _proved(folders, work, target, threads, damaged)
                merged = [os.path.basename(f.rstrip("/")) for f in folders]
                record: dict[str, Any] = {"version": 1, "merged": merged, "parts": given,
                                          "proof": {"round_trip": "bitwise"}, "files": hashes_of(work)}  # fmt: skip
                write_json(work / NAME, plain(record))
                publish(record["files"], work, target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, target, doing="merging") from error
    parts = tuple({"folder": f, **g} for f, g in zip(folders, given, strict=True))
    size = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
    return Merged(str(target), made[0], made[1], size, parts, one_save)


def _files(folders: Sequence[str]) -> list[Listed]:
    """The files of every folder by their name below it."""
    return [
        {p.relative_to(folder).as_posix(): p for p in sorted(Path(folder).rglob("*")) if p.is_file()}
        for folder in folders
    ]


def _of_one_save(folders: Sequence[str], files: list[Listed]) -> bool:
    """Whether the record of one part (its hashes of all files) covers the others. False where there is none.

    Raises
    ------
    PretraceError
        If a file is not the one that the record knows: it is of another save.
    """
    recorded = [
        (f, json.loads(listed[NAME].read_text())) for f, listed in zip(folders, files, strict=True) if NAME in listed
    ]
    known: dict[str, dict[str, Any]] = {}
    for folder, record in recorded:
        for name, about in record.get("files", {}).items():
            if known.setdefault(name, about) != about:
                raise _two_saves(name, recorded[0][0], folder)
    for folder, listed in zip(folders, files, strict=True):
        for name, path in listed.items():
            about = known.get(name)
            if about and (path.stat().st_size != about["size_bytes"] or xxh3_of_file(path) != about["xxh3"]):
                raise _two_saves(name, recorded[0][0], folder)
    return bool(known)


def _join(
    folders: Sequence[str], files: list[Listed], work: Path, threads: int, advance: Advance
) -> list[dict[str, int]]:
    given = [{"files": 0, "entries": 0} for _ in folders]
    items = sorted({m["item"] for listed in files for name in listed if (m := _DATABASE.fullmatch(name))})
    chosen: dict[str, tuple[int, Path]] = {}
    for k, listed in enumerate(files):
        for name, path in listed.items():
            if _DATABASE.fullmatch(name) or name == NAME:  # the result gets a record of its own
                continue
            if name not in chosen:
                chosen[name] = (k, path)
            elif not _NOTES.fullmatch(name) and not _same(chosen[name][1], path):
                raise _two_saves(name, folders[chosen[name][0]], folders[k])
    for name, (k, path) in chosen.items():
        _copy(path, work / name)
        given[k]["files"] += 1
        advance(path.stat().st_size)
    for item in items:
        counts = _join_databases(item, folders, files, work, threads, advance)
        for k, n in counts.items():
            given[k]["entries"] += n
    return given


def _same(a: Path, b: Path) -> bool:
    return a.stat().st_size == b.stat().st_size and xxh3_of_file(a) == xxh3_of_file(b)


def _two_saves(name: str, a: str, b: str) -> PretraceError:
    return PretraceError(f"{name} is in two of the folders with other bytes: they are parts of two saves", f"{a}, {b}",
                         "merge the folders of one step of one run")  # fmt: skip


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with naming(target, "copying"), open(source, "rb") as part, open(target, "wb") as file:
        shutil.copyfileobj(part, file, 4 << 20)
        file.flush()
        os.fsync(file.fileno())
    if not _same(source, target):
        raise PretraceError(f"{target.name} was not copied as it is", str(source), "check the disks, then run it again")


def _join_databases(
    item: str, folders: Sequence[str], files: list[Listed], work: Path, threads: int, advance: Advance
) -> dict[int, int]:
    """The entries of all databases of one item in a new one, each read back."""
    where: dict[str, tuple[int, OcdbtKeys]] = {}
    counts: dict[int, int] = {}
    for k, folder in enumerate(folders):
        bases = [f"file://{Path(folder).absolute()}/{base}" for base in _bases(item, files[k])]
        keys = OcdbtKeys(bases, folder)
        for key in sorted(keys.listed()):
            if key in where:
                if where[key][1].read(key) != keys.read(key):
                    raise _two_saves(key, folders[where[key][0]], folder)
                continue
            where[key] = (k, keys)
            counts[k] = counts.get(k, 0) + 1
    ts = tensorstore(str(work))
    base = f"file://{(work / item).absolute()}/"
    store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()

    def copy(key: str) -> None:
        value = where[key][1].read(key)
        store.write(key, value).result()
        advance(len(value))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, where))
    again = OcdbtKeys([base], str(work))
    for key, (_, keys) in where.items():
        if again.read(key) != keys.read(key):
            raise PretraceError(
                f"{key} did not come back as it was written", str(work), "check the disk, then run it again"
            )
    return counts


def _bases(item: str, listed: Listed) -> list[str]:
    """The databases below an item of one folder: the common one first, then those of its processes."""
    found = [name.removesuffix(_MANIFEST) for name in listed if name.startswith(item) and name.endswith(_MANIFEST)]
    return sorted((base for base in found if "/" not in base[len(item) :].rstrip("/")), key=len)


def _proved(folders: Sequence[str], work: Path, target: Path, threads: int, damaged: bool) -> tuple[str, int]:
    """Format and number of tensors of a result that is whole."""
    seen = survey(work, deep=True)
    if seen.view is not None:
        names = seen.view.names()
        seen.view.close()
    errors = [f for f in seen.findings if f.severity == "error"]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more gaps)" if len(errors) > 1 else ""
        raise PretraceError(f"the parts do not make a whole: {first.what}{more}", ", ".join(folders),
                            "find the folder of the host that is missing; nothing was written")  # fmt: skip
    assert seen.view is not None
    found = [f for f in checkpoint(work, threads=threads).findings if f.severity == "error"]
    if found and not damaged:
        raise PretraceError(f"the merged checkpoint is not sound: {found[0].what}", found[0].where,
                            "the save itself was damaged; --damaged keeps the result all the same")  # fmt: skip
    return seen.format, len(names)
