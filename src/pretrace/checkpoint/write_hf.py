"""Writes a checkpoint that transformers loads as is: model.safetensors and config.json, in blocks.

The bytes are those that the view reads: nothing is cast. Peak memory is one block. The file is laid out as safetensors'
own writer does it: the header padded with spaces to a multiple of 8, tensors one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.config import config_of
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.safetensors_header import NAMES
from pretrace.checkpoint.tables import HF
from pretrace.checkpoint.view import StateView
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.files import atomic_file, write_json

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

BLOCK_BYTES = 4 << 20
Progress = Callable[[int], None]  # called with the bytes written so far


def to_hf(view: StateView, spec: ModelSpec) -> StateView:
    """A canonical view under transformers' names and layouts; a `native` model keeps canonical names."""
    return relabel(view, HF[spec.family], spec) if spec.family in HF else view


def write_hf(folder: str | Path, view: StateView, spec: ModelSpec, *, progress: Progress | None = None) -> None:
    """Writes `model.safetensors` and `config.json` of a canonical `view` into an existing folder.

    A `native` model is written under canonical names, its config.json is `{"model_type": "pretrace", "spec": ...}`.

    Raises
    ------
    PretraceError
        If tensors are missing, or the files cannot be written (then neither is left half).
    """
    theirs = to_hf(view, spec)
    names = theirs.names()
    if not names:
        raise PretraceError("there is no tensor to write", str(folder), "pass a canonical view of the model")
    kind = theirs.info(names[0]).dtype
    config = (
        config_of(spec, kind) if spec.family in HF else {"model_type": "pretrace", "spec": spec.model_dump(mode="json")}
    )
    write_safetensors(Path(folder) / "model.safetensors", theirs, {"format": "pt"}, progress=progress)
    write_json(Path(folder) / "config.json", config)


def write_safetensors(path: str | Path, view: StateView, about: Mapping[str, str], *,
                      names: tuple[str, ...] | None = None, progress: Progress | None = None) -> None:  # fmt: skip
    """Writes the tensors of a view (all, or `names`) as one safetensors file, whole or not at all."""
    chosen = view.names() if names is None else names
    with atomic_file(path) as file:
        file.write(header_bytes(view, chosen, about))
        done = 0
        for name in chosen:
            for block in blocks(view, name):
                file.write(block.view(np.uint8).data)
                done += block.nbytes
                if progress is not None:
                    progress(done)


def blocks(view: StateView, name: str, block_bytes: int = BLOCK_BYTES) -> Iterator[NDArray[Any]]:
    """The tensor's elements in order, in blocks that share one buffer: use each before asking for the next."""
    info = view.info(name)
    storage = np.dtype(dtype(info.dtype).storage)
    n = max(1, min(block_bytes // storage.itemsize, info.numel))
    buffer = np.empty(n, storage)
    for start in range(0, info.numel, n):
        yield view.read(name, start, min(start + n, info.numel), buffer)


def header_bytes(view: StateView, names: tuple[str, ...], about: Mapping[str, str]) -> bytes:
    """The length and the JSON header of a safetensors file that holds `names` in this order."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    at = 0
    for name in names:
        info = view.info(name)
        header[name] = {
            "dtype": NAMES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [at, at + info.size_bytes],
        }
        at += info.size_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
