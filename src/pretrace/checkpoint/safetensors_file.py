"""safetensors files, single or sharded, with or without an index."""

from __future__ import annotations

from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.safetensors_header import Entry, read_header
from pretrace.checkpoint.sources import Folder, Source
from pretrace.checkpoint.stored import Place, StoredView
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.checkpoint.weight_map import disagreements, read_weight_map
from pretrace.findings import Finding

Tensors = dict[str, tuple[TensorInfo, Place]]


def open_files(folder: Folder, names: list[str], index: str | None = None) -> StateView:
    """A view of the tensors in the safetensors files `names` of a folder; `index` is its `*.index.json`, if it has one.

    Damage that leaves the rest readable is in the view's findings: a shard that is missing or unreadable, a name in two
    shards, a name in another shard than the index says, a file outside of the index.

    Raises
    ------
    DamagedFile
        If there is one file only, and it is damaged.
    """
    tensors: Tensors = {}
    found: list[Finding] = []
    about: dict[str, str] = {}
    for name in names:
        try:
            source = folder.open(name)
            entries, meta = read_header(source)
        except DamagedFile as error:
            if len(names) == 1 and index is None:
                raise
            found.append(error.finding())
            continue
        about |= meta
        found += _merge(tensors, entries, source)
    metadata: dict[str, Any] = {"safetensors": about}
    if index is not None:
        found += disagreements(read_weight_map(folder, index), folder, {n: info for n, (info, _) in tensors.items()})
    return StoredView("safetensors", tensors, metadata, tuple(found))


def _merge(tensors: Tensors, entries: tuple[Entry, ...], source: Source) -> list[Finding]:
    found = []
    for entry in entries:
        if entry.name in tensors:
            what = f"{entry.name} stands in two files: readers disagree which one counts"
            found.append(said("index-two-files", "error", what, f"{source.name}: {entry.name}", "remove one of them",
                              also_in=tensors[entry.name][0].where))  # fmt: skip
        else:
            info = TensorInfo(entry.name, entry.dtype, entry.shape, source.name)
            tensors[entry.name] = (info, Place(source, entry.begin))
    return found
