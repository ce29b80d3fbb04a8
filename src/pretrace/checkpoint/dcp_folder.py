"""torch's distributed checkpoints (DCP), read without torch and without a process group.

Folder: `.metadata`, a pickle that says for each tensor its size and chunks and for each chunk file, offset and length; and
`__<rank>_<n>.distcp`, in which every span is a small file of torch.save with one tensor (or an object). `.metadata` is written
last. Read from torch 2.13 (torch/distributed/checkpoint/metadata.py, filesystem.py).
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.dcp_metadata import METADATA, Chunk, Spans, faults, read_metadata, spans_of, tensors_of, tiles
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.links import Link, box, gather, whole
from pretrace.checkpoint.pickle_globals import Stub, TensorRef
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.sources import Folder, Source, SubFolder, Window
from pretrace.checkpoint.stored import Place, read_run
from pretrace.checkpoint.torch_file import open_torch
from pretrace.checkpoint.torch_objects import plain_of
from pretrace.checkpoint.view import StateView, TensorInfo, View
from pretrace.findings import Finding

_STEPS = ("step", "iteration", "global_step", "iter_num")
_MAX_OBJECTS = 100  # small objects that are read into the metadata


def find_dcp(folder: Folder, sizes: dict[str, int]) -> Folder | None:
    """The folder of `.metadata` and its files: this one, or the only one below; None if there is none."""
    inside = {
        name.rsplit("/", 1)[0] if "/" in name else ""
        for name in sizes
        if name.rsplit("/", 1)[-1] == METADATA or name.endswith(".distcp")
    }
    if len(inside) != 1:
        return None
    (prefix,) = inside
    return SubFolder(folder, prefix) if prefix else folder


def open_dcp(folder: Folder) -> StateView:
    """A view of the whole tensors.

    A file that is missing is a finding that names the tensors and rows lost; reading those raises.

    Raises
    ------
    DamagedFile
        If there is no `.metadata` (the save was never finished), or it cannot be understood.
    """
    sizes = folder.sizes()
    if METADATA not in sizes:
        raise DamagedFile(
            "files-unfinished",
            "there is no .metadata: the save was never finished",
            f"{folder.name}/{METADATA}",
            "use another step; .metadata is written last",
        )
    record = read_metadata(folder)
    spans = spans_of(record, folder)
    chunks, infos = tensors_of(record, spans, folder)
    found = list(faults(chunks, infos, spans, sizes, folder))
    sound = [name for name in infos if not tiles(infos[name], chunks[name])]
    base = _ChunkView(folder, [c for name in sound for c in chunks[name]], infos)
    wired = {
        name: Wired(infos[name], _links(infos[name], chunks[name]), "chunks joined" if len(chunks[name]) > 1 else "")
        for name in sound
    }
    saved = _objects(record, spans, folder, sizes)
    step = next((v for k, v in saved.items() if k.rsplit(".", 1)[-1] in _STEPS and type(v) is int), None)
    about = {"saved": saved, "tied": _tied(chunks)} | ({} if step is None else {"step": step})
    view = RewiredView(base, wired, about)
    view.having(tuple(found))
    view.format = "dcp"
    return view


def _links(info: TensorInfo, chunks: list[Chunk]) -> tuple[Link, ...]:
    if not info.shape:
        return (whole(chunks[0].name, ()),)
    return tuple(box(c.name, info.shape, c.offsets, c.sizes) for c in chunks if math.prod(c.sizes))


def _tied(chunks: dict[str, list[Chunk]]) -> list[list[str]]:
    """Tensors that are kept as the same span."""
    groups: dict[tuple[str, int, tuple[int, ...]], list[str]] = {}
    for name, (first, *rest) in ((name, parts) for name, parts in chunks.items() if parts):
        if not rest and first.file:
            groups.setdefault((first.file, first.offset, first.sizes), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _objects(record: Stub, spans: Spans, folder: Folder, sizes: dict[str, int]) -> dict[str, Any]:
    """Small saved objects (step, settings), as far as they are plain data."""
    tensors = {
        n
        for n, e in record.get("state_dict_metadata").items()
        if isinstance(e, Stub) and isinstance(e.get("size"), tuple)
    }
    saved: dict[str, Any] = {}
    for (name, _), (file, offset, length) in spans.items():
        if name in tensors or len(saved) >= _MAX_OBJECTS or length > 1 << 20 or offset + length > sizes.get(file, 0):
            continue
        source = folder.open(file)
        try:
            saved[name] = plain_of(open_torch(Window(source, offset, length, f"{source.name}@{offset}")).value)
        except DamagedFile:
            continue  # an object of another kind; tensors are what is promised
        finally:
            source.close()
    return saved


class _ChunkView(View):
    """The chunks as stored tensors; a file is opened, and a span's zip parsed, when it is first read."""

    format = "dcp"

    def __init__(self, folder: Folder, chunks: list[Chunk], infos: dict[str, TensorInfo]) -> None:
        super().__init__(
            {c.name: TensorInfo(c.name, infos[c.tensor].dtype, c.sizes, f"{folder.name}/{c.file}") for c in chunks}
        )
        self._folder = folder
        self._chunks = {c.name: c for c in chunks}
        self._sources: dict[str, Source] = {}
        self._places: dict[str, Place] = {}
        self._lock = threading.Lock()

    def _read(self, info: TensorInfo, start: int, stop: int, block: NDArray[Any]) -> None:
        with self._lock:
            place = self._places.get(info.name) or self._open(info)
        if place.link is None:
            read_run(place, start, block)
            return

        def run(name: str, first: int, last: int, out: NDArray[Any] | None) -> NDArray[Any]:
            made = np.empty(last - first, block.dtype) if out is None else out
            read_run(place, first, made)
            return made

        gather(run, (place.link,), start, stop, block)

    def _open(self, info: TensorInfo) -> Place:
        chunk = self._chunks[info.name]
        if chunk.file not in self._sources:
            self._sources[chunk.file] = self._folder.open(chunk.file)
        source = self._sources[chunk.file]
        file = open_torch(Window(source, chunk.offset, chunk.length, f"{source.name}@{chunk.offset}"))
        ref = file.value
        if not isinstance(ref, TensorRef) or ref.shape != chunk.sizes or ref.storage.dtype != info.dtype:
            raise DamagedFile(
                "files-chunk",
                f"the span of {chunk.tensor} holds something else than {info.dtype} {list(chunk.sizes)}",
                f"{source.name}@{chunk.offset}",
                "the file does not belong to this metadata",
            )
        if file.zip is not None:
            file.zip.check(f"{file.prefix}data/{ref.storage.key}")
        self._places[info.name] = file.place(ref)
        return self._places[info.name]

    def verify(self) -> tuple[Finding, ...]:
        """Opens every span and compares its CRC."""
        found = []
        there = self._folder.sizes()  # a missing file was said while opening
        for info in self._infos.values():
            if info.name in self._places or not info.numel or self._chunks[info.name].file not in there:
                continue
            try:
                with self._lock:
                    self._open(info)
            except DamagedFile as error:
                found.append(error.finding())
        return tuple(found)

    def close(self) -> None:
        """Closes every file that was opened."""
        for source in self._sources.values():
            source.close()
