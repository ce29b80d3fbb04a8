"""Log-likelihoods that were computed once: kept by what was read and scored, so that a stopped evaluation goes on.

A folder for each model (checkpoint, dtype, way of computing) holds parts, each written whole or not at all. An answer depends
on token ids only: it serves any task, limit and window that asks for the same tokens. Several processes may write side by
side. A part that cannot be read is computed again.
"""

from __future__ import annotations

import struct
import time
import uuid
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

from pretrace.errors import naming
from pretrace.files import atomic_file, sweep
from pretrace.score.answers import Scored
from pretrace.score.requests import Request

EVERY_S = 20.0  # seconds of work that a kill may cost


class Kept:
    """The answers of one model. With no folder they are kept in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[bytes, Scored] = {}
        self._new: list[tuple[bytes, Scored]] = []
        self._written = time.monotonic()
        if folder is not None and folder.is_dir():
            sweep(folder)
            for part in sorted(folder.glob("part-*.npz")):
                self._known |= _read(part)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request: Request) -> Scored | None:
        """The answer, if it is known."""
        return self._known.get(_key(request))

    def put(self, answers: Iterable[tuple[Request, Scored]]) -> None:
        """Keeps answers; writes a part when the last one is long ago."""
        for request, scored in answers:
            key = _key(request)
            self._known[key] = scored
            if scored.finite:  # what is not a number is asked again: the weights may be mended, the kernel another
                self._new.append((key, scored))
        if time.monotonic() - self._written > EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes what is not on the disk yet."""
        self._written = time.monotonic()
        if self._folder is None or not self._new:
            return
        with naming(self._folder, "writing"):
            self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._folder / f"part-{uuid.uuid4().hex[:16]}.npz") as file:
            np.savez(
                file,
                keys=np.frombuffer(b"".join(key for key, _ in self._new), np.uint8).reshape(-1, 16),
                lengths=np.array([len(scored.logprobs) for _, scored in self._new], np.int64),
                logprobs=np.concatenate([scored.logprobs for _, scored in self._new]),
                likeliest=np.concatenate([scored.likeliest for _, scored in self._new]),
            )
        self._new = []


def _key(request: Request) -> bytes:
    state = xxhash.xxh3_128(struct.pack("<q", len(request.context)))
    state.update(np.array(request.context + request.continuation, np.int64).tobytes())
    return bytes(state.digest())


def _read(part: Path) -> dict[bytes, Scored]:
    try:
        with np.load(part, allow_pickle=False) as data:
            keys, lengths, logprobs, likeliest = (data[n] for n in ("keys", "lengths", "logprobs", "likeliest"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
    ends = np.cumsum(lengths)
    if len(keys) != len(lengths) or not len(ends) or ends[-1] != len(logprobs) or len(logprobs) != len(likeliest):
        return {}
    cuts = zip(keys, ends - lengths, ends, strict=True)
    return {k.tobytes(): Scored(logprobs[a:b], likeliest[a:b]) for k, a, b in cuts}
