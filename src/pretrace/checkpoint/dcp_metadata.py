"""What the `.metadata` of a distributed checkpoint says: which box of which tensor stands in which span of which file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.pickle_globals import Stub
from pretrace.checkpoint.pickles import MAX_BYTES, Truncated, unpickle
from pretrace.checkpoint.sources import Folder, plain, read_bytes
from pretrace.checkpoint.view import TensorInfo
from pretrace.dtypes import DTYPES
from pretrace.findings import Finding

METADATA = ".metadata"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, and the span of the file that holds it ('' and 0 if the metadata names none)."""

    tensor: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset: int
    length: int

    @property
    def name(self) -> str:
        """What the chunk is called as a stored tensor: file and first byte."""
        return f"{self.file}@{self.offset}"

    @property
    def rows(self) -> str:
        """The part in words."""
        if not self.sizes:
            return ""
        ranges = [f"{o} to {o + n - 1}" for o, n in zip(self.offsets, self.sizes)]
        return f" rows {ranges[0]}" if len(ranges) < 2 or self.offsets[1] == 0 else f" [{', '.join(ranges)}]"


def read_metadata(folder: Folder) -> Stub:
    """The record in `.metadata`, nothing of it run."""
    source = folder.open(METADATA)
    try:
        if source.size > MAX_BYTES:
            raise DamagedFile(
                "size",
                f"{source.size:,} bytes of metadata, at most {MAX_BYTES:,} are read",
                source.name,
                "it is no DCP folder",
            )
        made = unpickle(read_bytes(source, 0, source.size), source.name)
    except Truncated:
        raise DamagedFile("pickle-truncated", "the metadata is cut short", source.name, "fetch it again") from None
    finally:
        source.close()
    if made.refused:
        raise DamagedFile(
            "pickle-global",
            f"unpickling this file would import and may call {made.refused[0]}",
            f"{source.name}: {made.refused[0]}",
            "do not load it with torch",
            names=[str(g) for g in made.refused[:50]],
        )
    value = made.value
    if (
        not isinstance(value, Stub)
        or not isinstance(value.get("state_dict_metadata"), dict)
        or not isinstance(value.get("storage_data"), dict)
    ):
        raise DamagedFile(
            "files-metadata", "the metadata is not that of a distributed checkpoint", source.name, "fetch it again"
        )
    return value


Spans = dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]


def spans_of(record: Stub, folder: Folder) -> Spans:
    """(tensor, offsets) -> (file, first byte, bytes)."""
    spans: Spans = {}
    for index, info in record.get("storage_data").items():
        if not isinstance(index, Stub) or not isinstance(info, Stub):
            continue
        file, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if not isinstance(file, str) or type(offset) is not int or type(length) is not int:
            raise DamagedFile(
                "files-metadata",
                f"the place of {index.get('fqn')} is not told",
                folder.name,
                "fetch the metadata again",
            )
        if info.get("transform_descriptors"):
            raise DamagedFile(
                "files-transform",
                f"{file} is compressed by an extension",
                f"{folder.name}/{file}",
                "save it without extensions",
            )
        at = index.get("offset")
        spans[str(index.get("fqn")), tuple(at) if isinstance(at, tuple) else ()] = (
            plain(file, folder.name),
            offset,
            length,
        )
    return spans


def tensors_of(record: Stub, spans: Spans, folder: Folder) -> tuple[dict[str, list[Chunk]], dict[str, TensorInfo]]:
    """The chunks and the description of every tensor."""
    chunks: dict[str, list[Chunk]] = {}
    infos: dict[str, TensorInfo] = {}
    for name, entry in record.get("state_dict_metadata").items():
        size = entry.get("size") if isinstance(entry, Stub) else None
        if not isinstance(size, tuple) or not isinstance(name, str):
            continue  # an object, not a tensor
        kind = _dtype(entry.get("properties"))
        chunks[name] = []
        for chunk in entry.get("chunks") or ():
            offsets, sizes = (chunk.get("offsets"), chunk.get("sizes")) if isinstance(chunk, Stub) else (None, None)
            if (
                not _counts(offsets)
                or not _counts(sizes)
                or len(offsets) != len(size)
                or len(sizes) != len(size)
                or not _counts(size)
            ):
                raise DamagedFile(
                    "files-metadata",
                    f"a chunk of {name} has no offsets and sizes",
                    f"{folder.name}/{METADATA}: {name}",
                    "fetch the metadata again",
                )
            chunks[name].append(Chunk(name, offsets, sizes, *spans.get((name, offsets), ("", 0, 0))))
        where = next((f"{folder.name}/{c.file}" for c in chunks[name] if c.file), folder.name)
        infos[name] = TensorInfo(name, kind, size, where)
    return chunks, infos


def _counts(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _dtype(properties: Any) -> str:
    state = properties.state if isinstance(properties, Stub) else None
    kind = state.get("dtype") if isinstance(state, dict) else state[0] if isinstance(state, tuple) and state else None
    if kind not in DTYPES:
        raise DamagedFile("files-metadata", f"unknown dtype {kind!r}", METADATA, "pretrace does not know this dtype")
    return str(kind)


def faults(
    chunks: dict[str, list[Chunk]], infos: dict[str, TensorInfo], spans: Spans, sizes: dict[str, int], folder: Folder
) -> Iterator[Finding]:
    """Files that are missing or cut, and tensors that their chunks do not cover."""
    lost: dict[str, list[str]] = {}
    for (name, offsets), (file, offset, length) in spans.items():
        if file not in sizes:
            part = next((c.rows for c in chunks.get(name, ()) if c.offsets == offsets), "")
            lost.setdefault(file, []).append(name + part)
        elif offset < 0 or length < 0 or offset + length > sizes[file]:
            what = (
                f"{name} should stand at bytes {offset:,} to {offset + length:,} of {file}, which has {sizes[file]:,}"
            )
            yield said("size", "error", what, f"{folder.name}/{file}: {name}", "the file is cut short: fetch it again")
    for file, parts in sorted(lost.items()):
        what = f"{file} is not there: lost are {', '.join(parts[:6])}" + (
            f" and {len(parts) - 6} more" if len(parts) > 6 else ""
        )
        yield said("files-missing", "error", what, f"{folder.name}/{file}", "fetch the missing file", lost=parts[:200])
    for name, info in infos.items():
        if why := tiles(info, chunks[name]):
            yield said(
                "chunks-tiling",
                "error",
                f"the chunks of {name} {why}",
                f"{folder.name}/{METADATA}: {name}",
                "save it again",
            )


def tiles(info: TensorInfo, chunks: list[Chunk]) -> str:
    """What is wrong with the boxes that should cover the tensor exactly; '' if nothing."""
    for chunk in chunks:
        if not chunk.file and math.prod(chunk.sizes) > 0:
            return f"lack a file{chunk.rows}"
        if any(o + n > size for o, n, size in zip(chunk.offsets, chunk.sizes, info.shape)):
            return f"reach outside of it{chunk.rows}"
    volume = sum([math.prod(c.sizes) for c in chunks])
    if volume != info.numel:
        return f"cover {volume:,} of {info.numel:,} elements"
    if len(chunks) <= 256 and any(_meet(a, b) for k, a in enumerate(chunks) for b in chunks[:k]):
        return "overlap"
    return ""


def _meet(a: Chunk, b: Chunk) -> bool:
    return all(max(p, q) < min(p + m, q + n) for p, m, q, n in zip(a.offsets, a.sizes, b.offsets, b.sizes)) and bool(
        a.sizes
    )
