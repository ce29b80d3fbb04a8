"""Token files known again: size and fingerprint of each, so that a run goes on with the data that it has read.

A fingerprint covers the whole of a file of up to 4 MiB, else 64 blocks of 64 KiB spread evenly from its first byte to its
last. A file made anew, shuffled, cut or exchanged shows; a few bytes changed in place in a large file may not.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import pretrace.data.remote as remote
from pretrace.data.order import DataSpec
from pretrace.data.sources import TokenSource
from pretrace.data.tokenfile import paths_of
from pretrace.errors import naming

_BLOCK, _BLOCKS = 64 << 10, 64


def seal(spec: DataSpec) -> list[dict[str, Any]]:
    """Name, size and fingerprint of every token file, in the order of the sources; folders are left out of the names.

    Raises
    ------
    PretraceError
        If a file cannot be read.
    """
    return [_of_file(path) for source in spec.sources for path in _files(source)]


def difference(kept: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """How the files differ from the kept ones, in words; empty where they do not. A file may have another name."""
    if len(kept) != len(now):
        return f"{len(now)} files, there were {len(kept)}"
    for old, new in zip(kept, now):
        if old["size_bytes"] != new["size_bytes"]:
            return f"{new['name']} has {new['size_bytes']:,} bytes, it had {old['size_bytes']:,}"
        if old["xxh3"] != new["xxh3"]:
            return f"{new['name']} holds other bytes than before"
    return ""


def _files(source: TokenSource) -> Iterator[str]:
    if remote.is_remote(source.path):
        paths = remote.matching(source.path) if "*" in source.path else [source.path]
    else:
        paths = sorted(glob.glob(source.path)) if "*" in source.path else [source.path]
    for path in paths:
        if source.format == "bin_idx":
            prefix = path.removesuffix(".bin").removesuffix(".idx")
            yield from (prefix + ".idx", prefix + ".bin") if remote.is_remote(path) else map(str, paths_of(path))
        elif not remote.is_remote(path) and os.path.isdir(path):
            yield from sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        else:
            yield path
            if source.format == "datatrove" and remote.exists(path + ".index"):
                yield path + ".index"


def _of_file(path: str) -> dict[str, Any]:
    local = remote.local_copy(path)
    with naming(path, "reading the data"), open(local, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return {"name": os.path.basename(path), "size_bytes": size, "xxh3": _fingerprint(file, size)}


def _fingerprint(file: Any, size: int) -> str:
    found = xxhash.xxh3_128()
    if size <= _BLOCK * _BLOCKS:
        found.update(file.read())
    else:
        for start in np.linspace(0, size - _BLOCK, _BLOCKS).astype(np.int64):
            file.seek(int(start))
            found.update(file.read(_BLOCK))
    return str(found.hexdigest())
