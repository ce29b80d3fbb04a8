"""Canonical fingerprints: one for values, one for files.

A value's digest is the sha256 of its canonical JSON: sorted keys, no spaces, floats by `repr`. Published identities use
sha256 (it is what model hubs show); quick checks of our own files use xxh3, several GB/s a core.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

_CHUNK = 1 << 22


def canonical_json(value: Any) -> str:
    """The canonical text of a value made of None, bool, int, float, str, lists and mappings with string keys."""
    _refuse_nonfinite(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """sha256, as 64 hexadecimal digits, of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def short(digest: str) -> str:
    """The first six digits, for people: `7c1f2a`."""
    return digest[:6]


def sha256_of_file(path: str | Path) -> str:
    """sha256 of a file's bytes, read in blocks of 4 MiB."""
    return _of_file(path, hashlib.sha256())


def xxh3_of_file(path: str | Path) -> str:
    """xxh3-128 of a file's bytes, read in blocks of 4 MiB."""
    return _of_file(path, xxhash.xxh3_128())


def _of_file(path: str | Path, state: Any) -> str:
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while n := file.readinto(buffer):
            state.update(view[:n])
    return str(state.hexdigest())


def _refuse_nonfinite(value: Any) -> None:
    # JSON has no NaN or infinity; two readers would disagree about the text, hence about the digest.
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no canonical form")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a string")
            _refuse_nonfinite(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_nonfinite(item)
