"""Files of torch.save, the zip of today and the pickles of before 1.6, read without torch.

A zip has one top folder with `data.pkl`, `data/<key>` (raw storages) and `byteorder`. A legacy file is a row of pickles (magic
number, protocol, system, object, storage keys) and then, for each key, an int64 count of elements and the raw storage.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.links import Link, c_strides, normal
from pretrace.checkpoint.pickle_globals import StorageRef, TensorRef
from pretrace.checkpoint.pickles import MAX_BYTES, Truncated, Unpickled, unpickle
from pretrace.checkpoint.sources import Source, read_bytes
from pretrace.checkpoint.stored import Place, StoredView
from pretrace.checkpoint.torch_objects import tensors_in
from pretrace.checkpoint.view import TensorInfo
from pretrace.checkpoint.zip_directory import ZipDirectory, bad
from pretrace.dtypes import dtype
from pretrace.findings import Finding

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class TorchFile:
    """An opened file: the plain object with `TensorRef`s, and where the storages lie."""

    source: Source
    value: Any
    storages: dict[str, tuple[int, int]]  # key -> (first byte, bytes)
    swapped: bool
    findings: tuple[Finding, ...]
    zip: ZipDirectory | None
    prefix: str = ""

    def place(self, tensor: TensorRef) -> Place:
        """Where a tensor's elements lie.

        Raises
        ------
        DamagedFile
            If its storage is missing or too small for it.
        """
        key, width = tensor.storage.key, dtype(tensor.storage.dtype).itemsize
        if key not in self.storages:
            raise DamagedFile(
                "files-storage", f"the storage {key!r} is not in the file", self.source.name, "the file is damaged"
            )
        at, size = self.storages[key]
        link = normal(Link("", tensor.shape, c_strides(tensor.shape), tensor.strides))
        if link.numel and (tensor.offset + link.source_span) * width > size:
            raise DamagedFile(
                "pickle-tensor",
                f"a tensor of shape {list(tensor.shape)} reaches past its storage {key!r} of {size:,} bytes",
                self.source.name,
                "the file is damaged or lies about its sizes",
            )
        plain = link.sizes in ((), (link.numel,)) and link.source_strides in ((), (1,))
        return Place(self.source, at + tensor.offset * width, None if plain else link, self.swapped)


def is_torch_zip(head: bytes) -> bool:
    """Whether the first bytes are those of a zip."""
    return head[:4] == b"PK\3\4"


def is_legacy(head: bytes) -> bool:
    """Whether the first bytes are the magic pickle of old torch files."""
    return head[:1] == b"\x80" and b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" in head[:16]


def is_torch(head: bytes) -> bool:
    """Whether a file starts like one of torch.save, or like a pointer to one."""
    return is_torch_zip(head) or is_legacy(head) or head.startswith(_LFS)


def open_torch(source: Source) -> TorchFile:
    """Opens a file of torch.save.

    Raises
    ------
    DamagedFile
        If it is damaged or of another kind.
    """
    head = read_bytes(source, 0, min(source.size, 512))
    if head.startswith(_LFS):
        raise DamagedFile(
            "header-lfs-pointer", "a Git LFS pointer, not weights", source.name, "fetch the file itself: git lfs pull"
        )
    if is_torch_zip(head):
        return _open_zip(source)
    if is_legacy(head):
        return _open_legacy(source)
    if head[257:262] == b"ustar":
        raise DamagedFile(
            "zip-tar",
            "the tar format of torch before 0.1.10",
            source.name,
            "load and save it once with torch below 2.0",
        )
    raise DamagedFile("zip-unknown", "neither a zip nor a pickle of torch.save", source.name, "fetch the file again")


def _open_zip(source: Source) -> TorchFile:
    directory = ZipDirectory(source)
    pickles = [name for name in directory.entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise bad(source, "content", "", "a zip without data.pkl: not a file of torch.save")
    prefix = pickles[0][: -len("data.pkl")]
    found = _unpickled(directory.read(pickles[0], MAX_BYTES), f"{source.name}: {pickles[0]}")
    order = prefix + "byteorder"
    swapped = order in directory.entries and directory.read(order, 16).strip() == b"big"
    storages = {}
    for name, entry in directory.entries.items():
        if name.startswith(prefix + "data/"):
            storages[name[len(prefix) + 5 :]] = (directory.data_at(name), entry.size)
    return TorchFile(source, found.value, storages, swapped, _refusals(found, source), directory, prefix)


def _unpickled(data: bytes, where: str, start: int = 0) -> Unpickled:
    try:
        return unpickle(data, where, start)
    except Truncated:
        raise DamagedFile(
            "pickle-truncated", "the pickle is cut short", where, "the file is damaged: fetch it again"
        ) from None


def _open_legacy(source: Source) -> TorchFile:
    n = min(source.size, 1 << 20)
    while True:
        data = read_bytes(source, 0, n)
        try:
            parts = _legacy_pickles(data, source.name)
            break
        except Truncated:
            if n == source.size or n >= MAX_BYTES:
                raise DamagedFile(
                    "pickle-truncated", "the pickle is cut short", source.name, "the file is damaged: fetch it again"
                ) from None
            n = min(source.size, n * 8, MAX_BYTES)
    magic, protocol, system, found, keys = parts
    if magic.value != MAGIC_NUMBER or protocol.value != 1001 or not isinstance(keys.value, list):
        raise DamagedFile(
            "pickle-legacy",
            "the pickles of an old torch file are not in their order",
            source.name,
            "fetch the file again",
        )
    little = not isinstance(system.value, dict) or system.value.get("little_endian", True)
    storages = _legacy_storages(source, keys.end, [str(k) for k in keys.value], found.value)
    return TorchFile(source, found.value, storages, not little, _refusals(found, source), None)


def _legacy_pickles(data: bytes, where: str) -> list[Unpickled]:
    parts: list[Unpickled] = []
    at = 0
    for _ in range(5):
        parts.append(unpickle(data, where, at))
        at = parts[-1].end
    return parts


def _legacy_storages(source: Source, at: int, keys: list[str], value: Any) -> dict[str, tuple[int, int]]:
    kinds = {t.storage.key: t.storage for _, t in tensors_in(value)}
    storages: dict[str, tuple[int, int]] = {}
    for key in keys:
        numel = int.from_bytes(read_bytes(source, at, 8), "little", signed=True)
        if key not in kinds:  # an unused storage: its width is not known, so neither is where the next one starts
            raise DamagedFile(
                "pickle-legacy", f"the storage {key!r} belongs to no tensor", source.name, "save it again with torch"
            )
        size = numel * dtype(kinds[key].dtype).itemsize
        if numel < 0 or at + 8 + size > source.size:
            raise DamagedFile(
                "size",
                f"the storage {key!r} of {numel:,} elements does not fit: the file is cut short at {source.size:,} bytes",
                source.name,
                "fetch the file again",
            )
        storages[key] = (at + 8, size)
        at += 8 + size
    return storages


def _refusals(found: Unpickled, source: Source) -> tuple[Finding, ...]:
    names = list(dict.fromkeys(str(g) for g in found.refused))
    if not names:
        return ()
    at = [g.at for g in found.refused]
    what = f"unpickling this file would import and may call {', '.join(names[:5])}"
    return (
        said(
            "pickle-global",
            "error",
            what,
            f"{source.name}: {names[0]}",
            "do not load it with torch.load or pickle; pretrace runs nothing of it",
            names=names[:50],
            bytes=at[:50],
        ),
    )


class TorchView(StoredView):
    """The tensors of one or several torch files. Storages of a zip are checked against their CRC before they are read."""

    def __init__(
        self,
        format: str,
        files: dict[str, tuple[TorchFile, TensorRef]],
        metadata: dict[str, Any],
        findings: tuple[Finding, ...],
    ) -> None:
        tensors = {}
        self._entry: dict[str, tuple[ZipDirectory, str]] = {}
        for name, (file, ref) in files.items():
            tensors[name] = (TensorInfo(name, ref.storage.dtype, ref.shape, file.source.name), file.place(ref))
            if file.zip is not None:
                self._entry[name] = (file.zip, f"{file.prefix}data/{ref.storage.key}")
        super().__init__(format, tensors, metadata, findings, check=self._check_once)
        self._sound: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def _check_once(self, name: str) -> None:
        if name not in self._entry:
            return
        directory, entry = self._entry[name]
        with self._lock:  # two threads that ask for one storage wait for one check
            if (id(directory), entry) not in self._sound:
                directory.check(entry)
                self._sound.add((id(directory), entry))

    def verify(self) -> tuple[Finding, ...]:
        """Reads every storage and compares its CRC."""
        found: dict[str, Finding] = {}
        for name in self._entry:
            try:
                self._check_once(name)
            except DamagedFile as error:
                found.setdefault(error.where, replace(error.finding(), evidence={**error.evidence, "tensor": name}))
        return tuple(found.values())


def aliases(files: dict[str, tuple[TorchFile, TensorRef]]) -> list[list[str]]:
    """Names that share all their bytes (tied tensors)."""
    groups: dict[tuple[int, StorageRef, int, tuple[int, ...]], list[str]] = {}
    for name, (file, ref) in files.items():
        groups.setdefault((id(file), ref.storage, ref.offset, ref.shape), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
