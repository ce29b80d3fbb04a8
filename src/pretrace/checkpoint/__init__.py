"""Any checkpoint, read lazily and safely: a view of named tensors, without torch, jax or transformers.

- `open_state(path)`: the view of a checkpoint, its format told from its content; a fault is an exception.
- `survey(path)`: the same, with every fault as a finding instead.
- `series_of("hf://org/name")`: the branches of a repository, each pinned to its commit.
- `canonical(view)`: the same tensors under pretrace's names and layouts.
- `canonical_state(view)`: with the optimizer's state, if there is one.
- `with_rows(view, n)`: the vocabulary cut or padded to n rows.
- `write_hf(folder, view, spec)`: a checkpoint that transformers loads as is.
- `layout_of(format, view, spec, options)`: what a checkpoint of any written format will be, file by file; `write_layout`
  writes it plainly.
- `StateView`, `TensorInfo`, `Extent`, `read_all`: the interface that all formats share.
- `ArraysView`: arrays in memory as a view.
"""

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.config import Dims, config_of, dims_of, spec_of
from pretrace.checkpoint.detect import Survey, open_state, series_of, survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.fill import blocks, write_layout
from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.layout_hf import to_hf
from pretrace.checkpoint.layouts import layout_of
from pretrace.checkpoint.names import canonical, naming, relabel
from pretrace.checkpoint.optimizer_state import canonical_state
from pretrace.checkpoint.view import Extent, StateView, TensorInfo, read_all
from pretrace.checkpoint.vocabulary import with_rows
from pretrace.checkpoint.write_hf import write_hf, write_safetensors
from pretrace.checkpoint.write_options import WriteOptions, plain_options

__all__ = [
    "ArraysView", "DamagedFile", "Dims", "Extent", "Layout", "StateView", "StoreLayout", "Survey", "TensorInfo",
    "WriteOptions", "blocks", "canonical", "canonical_state", "config_of", "dims_of", "layout_of", "naming", "open_state",
    "plain_options", "read_all", "relabel", "series_of", "spec_of", "survey", "to_hf", "with_rows", "write_hf",
    "write_layout", "write_safetensors",
]  # fmt: skip
