"""Digests of the weight files of a checkpoint: published ones where the place knows them, else of samples, else of everything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from pretrace.checkpoint.detect import open_folder
from pretrace.checkpoint.sources import Folder, Source

SAMPLE = 1 << 16  # bytes, at each of SAMPLES places
SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file: its name in the folder, its size, and a digest of its content."""

    name: str
    size: int  # bytes; 0 where only the digest was asked for
    digest: str  # `sha256:...` as published, `xxh3:...` of the size and 16 samples of 64 KiB


def shards_of(path: str, files: tuple[str, ...], published: Mapping[str, str]) -> tuple[Shard, ...]:
    """The weight files of a checkpoint. `files` are as the view names them, `published` their sha256 where the place knows it.

    Nothing large is read.
    """
    if published and all(file in published for file in files):
        return tuple(Shard(file.rsplit("/", 1)[-1], 0, f"sha256:{published[file]}") for file in files)
    folder = open_folder(path)
    sizes = folder.sizes()
    shards = []
    for name, size in sizes.items():
        if any(_is(file, folder, name) for file in files):
            known = folder.sha256(name)
            shards.append(Shard(name, size, f"sha256:{known}" if known else _sampled(folder, name)))
    return tuple(shards)


def _is(file: str, folder: Folder, name: str) -> bool:
    return (
        file == name
        or (file.rstrip("/").endswith("/" + name) and file.startswith(folder.name))
        or file == os.path.join(folder.name, name)
    )


def _sampled(folder: Folder, name: str) -> str:
    # Two trained states share no 64 KiB of weights by chance; two headers do, so samples are spread over the whole file.
    source = folder.open(name)
    try:
        state = xxhash.xxh3_128(str(source.size).encode())
        for offset, length in _places(source):
            block = bytearray(length)
            source.read_into(offset, memoryview(block))
            state.update(block)
        return "xxh3:" + state.hexdigest()
    finally:
        source.close()


def _places(source: Source) -> list[tuple[int, int]]:
    if source.size <= SAMPLE * SAMPLES:
        return [(0, source.size)] if source.size else []
    step = (source.size - SAMPLE) // (SAMPLES - 1)
    return [(i * step, SAMPLE) for i in range(SAMPLES)]
