"""The `*.index.json` of a sharded checkpoint (which name stands in which file), and what it and the files disagree about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.json_text import parse
from pretrace.checkpoint.sources import Folder, read_bytes
from pretrace.checkpoint.view import TensorInfo
from pretrace.findings import Finding


@dataclass(frozen=True, slots=True)
class WeightMap:
    """One index: its address, name -> file, and the bytes that it says all tensors take."""

    where: str
    files: Mapping[str, str]
    total_size: int | None


def read_weight_map(folder: Folder, name: str) -> WeightMap:
    """The index `name` of a folder. Only plain file names are followed.

    Raises
    ------
    DamagedFile
        If it is no index, or names a file outside of the folder.
    """
    source = folder.open(name)
    try:
        data = parse(read_bytes(source, 0, source.size), source.name, "index")
    finally:
        source.close()
    files = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise DamagedFile("index-json", "the index has no weight_map of names to files", source.name, "restore it")
    for file in set(files.values()):
        if "/" in file or "\\" in file or "\0" in file or file in ("", ".", ".."):
            what = f"the index names the file {file[:80]!r}: only plain names are followed"
            raise DamagedFile("index-path", what, source.name, "do not trust this checkpoint")
    meta = data.get("metadata")
    total = meta.get("total_size") if isinstance(meta, dict) else None
    return WeightMap(source.name, files, int(total) if isinstance(total, (int, float)) else None)


def disagreements(index: WeightMap, folder: Folder, found: Mapping[str, TensorInfo]) -> Iterator[Finding]:
    """What the index and the tensors that were found disagree about."""
    sizes = folder.sizes()
    holds = {name: info.where.rsplit("/", 1)[-1] for name, info in found.items()}
    readable = set(holds.values())
    for file in sorted(set(index.files.values()) - sizes.keys()):
        lost = [name for name, where in index.files.items() if where == file]
        yield said("index-missing-file", "error", f"{file} is not there: {len(lost)} tensors are lost",
                   f"{folder.name}/{file}", "fetch the missing file", tensors=lost[:20], n_tensors=len(lost))  # fmt: skip
    for name, file in index.files.items():
        # A file that is missing or unreadable is said once, not for each of its tensors.
        if file in readable and holds.get(name) != file:
            what = f"the index has {name} in {file}, it is in {holds.get(name, 'no file')}"
            yield said("index-mismatch", "error", what, f"{index.where}: {name}", "restore index and files together")
    for name in sorted(found.keys() - index.files.keys()):
        yield said("index-unlisted", "warning", f"{name} is in a file, but not in the index", found[name].where,
                   "readers that follow the index do not see it")  # fmt: skip
    present = sum(info.size_bytes for info in found.values())
    if index.total_size not in (None, present) and found.keys() == index.files.keys():
        yield said("index-total-size", "info", f"the index counts {index.total_size:,} bytes, the tensors take {present:,}",
                   index.where, "some writers count tied tensors twice", index=index.total_size, present=present)  # fmt: skip
