"""Writes a checkpoint that transformers loads as is: model.safetensors and config.json, in blocks.

The bytes are those that the view reads: nothing is cast. Peak memory is one block. What is written is planned in `layout_hf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pretrace.checkpoint.fill import Progress, write_layout
from pretrace.checkpoint.layout import Layout
from pretrace.checkpoint.layout_hf import safetensors_file
from pretrace.checkpoint.layouts import layout_of
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import plain_options

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec


def write_hf(folder: str | Path, view: StateView, spec: ModelSpec, *, progress: Progress | None = None) -> None:
    """Writes `model.safetensors` and `config.json` of a canonical `view` into an existing folder.

    A `native` model is written under canonical names, its config.json is `{"model_type": "pretrace", "spec": ...}`.

    Raises
    ------
    PretraceError
        If tensors are missing, or the files cannot be written (then neither is left half).
    """
    layout = layout_of("hf", view, spec, plain_options(view, optimizer=False))
    assert isinstance(layout, Layout)
    write_layout(layout, folder, progress=progress)


def write_safetensors(path: str | Path, view: StateView, about: Mapping[str, str], *,
                      names: tuple[str, ...] | None = None, progress: Progress | None = None) -> None:  # fmt: skip
    """Writes the tensors of a view (all, or `names`) as one safetensors file, whole or not at all."""
    path = Path(path)
    file = safetensors_file(path.name, view, view.names() if names is None else names, about)
    write_layout(Layout("safetensors", (file,), view), path.parent, progress=progress)
