"""llm.c's model_<step>.bin: 256 int32, then the parameters of GPT-2, each for all layers; and DONE_<step> beside it.

Header: 20240326, version (3 fp32, 5 bf16), max_seq_len, vocabulary, layers, heads, channels, vocabulary padded to a multiple of
128 (rows of zeros). Weights are [out, in]. (llm.c, train_gpt2.cu, gpt2_write_to_checkpoint.)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pretrace.checkpoint.layout import Draft, Layout, known_file, refuse
from pretrace.checkpoint.layout_hf import without_state_and_tied_head
from pretrace.checkpoint.llmc_file import HEADER_BYTES, LLMC_DTYPES, LLMC_MAGIC, llmc_shapes
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.tables_small import NANOGPT
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_options import WriteOptions
from pretrace.dtypes import dtype

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_MULTIPLE = 128  # of rows of the vocabulary


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The one file that llm.c reads, and its mark."""
    weights, dropped = without_state_and_tied_head(view, spec)
    theirs = relabel(weights, NANOGPT, spec) if spec.family == "gpt2" else weights
    kinds = {theirs.info(name).dtype for name in theirs.names()}
    versions = {kind: version for version, kind in LLMC_DTYPES.items()}
    _refuse_others(format, spec, kinds, versions)
    kind = kinds.pop()
    rows, padded = spec.vocab_size, -(-spec.vocab_size // _MULTIPLE) * _MULTIPLE
    head = (
        LLMC_MAGIC,
        versions[kind],
        spec.max_seq_len,
        _used(view, rows),
        spec.n_layers,
        spec.n_heads,
        spec.d_model,
        padded,
    )
    draft = Draft(f"model_{options.step:08d}.bin", theirs)
    draft.bytes(struct.pack("<8i", *head).ljust(HEADER_BYTES, b"\0"))
    for name, _, layers in llmc_shapes(spec.d_model, padded, spec.max_seq_len, spec.n_layers):
        for i in range(max(1, layers)):
            draft.tensor(name.replace("{i}", str(i)))
        if name == "transformer.wte.weight":
            draft.bytes(bytes((padded - rows) * spec.d_model * dtype(kind).itemsize))
    notes = (f"{padded - rows} rows of zeros added to the vocabulary",) if padded > rows else ()
    return Layout(format, (draft.done(), known_file(f"DONE_{options.step:08d}", b"")), theirs, dropped, notes)


def _used(view: StateView, rows: int) -> int:
    """Rows that the tokenizer uses, where the source tells."""
    told = view.metadata().get("vocab_rows_used")
    return told if type(told) is int and 0 < told <= rows else rows


def _refuse_others(format: str, spec: ModelSpec, kinds: set[str], versions: dict[str, int]) -> None:
    if spec.family != "gpt2":
        raise refuse(format, f"a {spec.family} model, it knows GPT-2 only", "choose hf, dcp or maxtext")
    if spec.d_ff != 4 * spec.d_model or spec.norm_eps != 1e-5 or spec.activation != "gelu_tanh":
        told = f"d_ff {spec.d_ff}, norm_eps {spec.norm_eps}, {spec.activation}"
        raise refuse(format, f"{told}; it has 4 x {spec.d_model}, 1e-5 and gelu_tanh", "choose hf")
    if len(kinds) != 1 or not kinds <= set(versions):
        raise refuse(format, f"tensors of {', '.join(sorted(kinds))}", "declare one dtype: float32 or bfloat16")
