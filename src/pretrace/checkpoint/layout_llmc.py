"""llm.c's model_<step>.bin: 256 int32, then the parameters of GPT-2, each for all layers; its state file; DONE_<step> last.

Header: 20240326, version (3 fp32, 5 bf16), max_seq_len, vocabulary, layers, heads, channels, vocabulary padded to a multiple of
128 (rows of zeros). Weights are [out, in]. `state_<step>_00000.bin`, of one process: 20240527, 1, processes, rank, whether
masters are there, shuffle, [10] step, [20] and [22] the generator, [30] and [32] the data loader; then m, v and masters in fp32,
in the order of the parameters. (llm.c, train_gpt2.cu, gpt2_write_to_checkpoint and save_state.)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pretrace.checkpoint.layout import Draft, Layout, PlannedFile, known_file, refuse
from pretrace.checkpoint.layout_hf import without_state_and_tied_head
from pretrace.checkpoint.layout_nanogpt import refuse_other_gpt2
from pretrace.checkpoint.llmc_file import HEADER_BYTES, LLMC_DTYPES, LLMC_MAGIC, STATE_MAGIC, llmc_shapes
from pretrace.checkpoint.names import relabel
from pretrace.checkpoint.optimizer_names import state_of
from pretrace.checkpoint.tables_small import NANOGPT
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.widened import Widened
from pretrace.checkpoint.write_options import WriteOptions
from pretrace.dtypes import dtype

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

_MULTIPLE = 128  # of rows of the vocabulary
# What train_gpt2.cu seeds its generator with; 0 would stay 0 forever (xorshift).
_FIRST_GENERATOR = 13371337


def layout(format: str, view: StateView, spec: ModelSpec, options: WriteOptions) -> Layout:
    """The files that llm.c reads, and its mark."""
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
    states = _states(view, spec) if options.optimizer else {}
    sources = United({"": theirs} | {f"{name}:": state for name, state in states.items()})
    model = Draft(f"model_{options.step:08d}.bin", sources)
    model.bytes(struct.pack("<8i", *head).ljust(HEADER_BYTES, b"\0"))
    _put_parameters(model, "", spec, padded)
    files = [model.done(), known_file(f"DONE_{options.step:08d}", b"")]
    if states:
        files.insert(1, _state_file(sources, states, spec, padded, options.step))
    placed = {name for name in dropped for kind in states if name.startswith(f"optimizer.{kind}.")}
    left = tuple(name for name in dropped if name not in placed)
    return Layout(format, tuple(files), sources, left, _notes(view, spec, padded - rows, bool(states), options.step))


def _states(view: StateView, spec: ModelSpec) -> dict[str, StateView]:
    found = {kind: state_of(view, kind) for kind in ("exp_avg", "exp_avg_sq", "fp32")}
    if not found["exp_avg"].names():
        return {}
    return {kind: Widened(relabel(state, NANOGPT, spec)) for kind, state in found.items() if state.names()}


def _state_file(sources: United, states: dict[str, StateView], spec: ModelSpec, padded: int, step: int) -> PlannedFile:
    header = [0] * 256
    header[:6] = [STATE_MAGIC, 1, 1, 0, int("fp32" in states), 0]
    header[10] = step
    header[20] = header[22] = _FIRST_GENERATOR
    draft = Draft(f"state_{step:08d}_00000.bin", sources)
    draft.bytes(struct.pack("<256i", *header))
    for kind in states:
        _put_parameters(draft, f"{kind}:", spec, padded)
    return draft.done()


def _put_parameters(draft: Draft, prefix: str, spec: ModelSpec, padded: int) -> None:
    """All parameters in llm.c's order, rows of zeros behind the embedding's own."""
    for name, _, layers in llmc_shapes(spec.d_model, padded, spec.max_seq_len, spec.n_layers):
        for i in range(max(1, layers)):
            draft.tensor(prefix + name.replace("{i}", str(i)))
        if name == "transformer.wte.weight":
            width = dtype(draft.sources.info(prefix + name).dtype).itemsize
            draft.bytes(bytes((padded - spec.vocab_size) * spec.d_model * width))


def _notes(view: StateView, spec: ModelSpec, added: int, state: bool, step: int) -> tuple[str, ...]:
    notes = [f"{added} rows of zeros added to the vocabulary"] if added else []
    if spec.activation == "gelu":
        notes.append("llm.c computes the tanh form of GELU, the model has the exact one: logits differ a little")
    seen = view.metadata().get("optimizer_step", step)
    if state:
        notes.append("the data loader starts anew: llm.c keeps its position in the state file, other formats do not")
    if state and seen != step:
        notes.append(f"llm.c corrects Adam's moments by the step ({step}), the optimizer has made {seen} updates")
    return tuple(notes)


def _used(view: StateView, rows: int) -> int:
    """Rows that the tokenizer uses, where the source tells."""
    told = view.metadata().get("vocab_rows_used")
    return told if type(told) is int and 0 < told <= rows else rows


def _refuse_others(format: str, spec: ModelSpec, kinds: set[str], versions: dict[str, int]) -> None:
    refuse_other_gpt2(format, spec)
    if len(kinds) != 1 or not kinds <= set(versions):
        raise refuse(format, f"tensors of {', '.join(sorted(kinds))}", "declare one dtype: float32 or bfloat16")
