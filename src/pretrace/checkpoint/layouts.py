"""All formats that pretrace writes: `layout_of` plans one, torch-free and without reading a value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import WriteOptions
from pretrace.errors import PretraceError

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

# Format -> the file of this room whose function `layout` plans it; imported when it is asked for.
FORMATS = {
    "hf": "layout_hf", "dcp": "layout_dcp", "llmc": "layout_llmc", "maxtext": "layout_orbax", "nanogpt": "layout_nanogpt",
    "neox": "layout_neox", "orbax": "layout_orbax",
}  # fmt: skip


def layout_of(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout | StoreLayout:
    """The files of a checkpoint of `format` with the tensors of a canonical `view`.

    Raises
    ------
    PretraceError
        If the format is unknown, does not know this family, or lacks a tensor that it needs.
    """
    if format not in FORMATS:
        raise PretraceError(
            f"{format!r} is no format that is written", "--to", f"choose one of {', '.join(sorted(FORMATS))}"
        )
    if not view.names():
        raise PretraceError("there is no tensor to write", view.format, "pass a canonical view of the model")
    planned = importlib.import_module(f"pretrace.checkpoint.{FORMATS[format]}").layout(format, view, spec, options)
    assert isinstance(planned, (Layout, StoreLayout))
    used = view.metadata().get("vocab_rows_used")
    if type(used) is int and used < spec.vocab_size and format != "llmc":  # llm.c's header says it
        said = f"{spec.vocab_size - used} of {spec.vocab_size} rows of the vocabulary are padding: --pad-vocab {used} cuts them"
        return replace(planned, notes=(*planned.notes, said))
    return planned
