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
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from pretrace.digest import digest_of
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file, read_json, sweep, write_json
from pretrace.score.answers import Scored
from pretrace.score.requests import Request


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A text to be written after `ids`: until one of `stops` (and whatever else names how it ends), or `most` tokens."""

    ids: tuple[int, ...]
    stops: tuple[str, ...]
    most: int


EVERY_S = 20.0  # seconds of work that a kill may cost


class Kept:
    """The answers of one model. With no folder they are kept in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[bytes, Scored] = {}
        self._new: list[tuple[bytes, Scored]] = []
        self._texts: dict[str, list[int]] = {}
        self._new_texts: dict[str, list[int]] = {}
        self._written = time.monotonic()
        if folder is not None and folder.is_dir():
            sweep(folder)
            for part in sorted(folder.glob("part-*.npz")):
                self._known |= _read(part)
            for part in sorted(folder.glob("written-*.json")):
                self._texts |= _read_texts(part)

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

    def written(self, request: WriteRequest) -> list[int] | None:
        """The ids that were written for a request, if they are known."""
        return self._texts.get(_text_key(request))

    def put_written(self, request: WriteRequest, ids: list[int]) -> None:
        """Keeps a text; writes a part when the last one is long ago."""
        self._texts[_text_key(request)] = self._new_texts[_text_key(request)] = ids
        if time.monotonic() - self._written > EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes what is not on the disk yet."""
        self._written = time.monotonic()
        if self._folder is None or not (self._new or self._new_texts):
            return
        with naming(self._folder, "writing"):
            self._folder.mkdir(parents=True, exist_ok=True)
        if self._new_texts:
            write_json(self._folder / f"written-{uuid.uuid4().hex[:16]}.json", self._new_texts)
            self._new_texts = {}
        if self._new:
            self._write_scored(self._folder)

    def _write_scored(self, folder: Path) -> None:
        with atomic_file(folder / f"part-{uuid.uuid4().hex[:16]}.npz") as file:
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


def _text_key(request: WriteRequest) -> str:
    return digest_of(asdict(request))


def _read_texts(part: Path) -> dict[str, list[int]]:
    try:
        found = read_json(part)
    except PretraceError:
        return {}
    whole = isinstance(found, dict) and all(
        isinstance(ids, list) and all(isinstance(i, int) for i in ids) for ids in found.values()
    )
    return found if whole else {}


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
