"""Faults put into a table one at a time, as a careless edit would: the proof catches each, and no target appears.

A table is read in both directions, so reading back with the same fault gives the right bits again. What catches it is the
second reading, or transformers.
"""

from dataclasses import replace

import pytest

import pretrace.checkpoint.vocabulary as vocabulary
from assets import checkpoint_cases, unpacked
from convert_lab import request, settings
from pretrace.checkpoint.links import Link
from pretrace.checkpoint.table import Rename, Split
from pretrace.checkpoint.tables import HF
from pretrace.checkpoint.tables_neox import NEOX
from pretrace.checkpoint.tables_small import META_LLAMA, NANOGPT
from pretrace.convert.run import convert
from pretrace.errors import PretraceError

CASES = checkpoint_cases()
LLAMA2C = unpacked("models") / "models" / "stories260k" / "stories260K.bin"
ROTARY = lambda move: replace(move, axes=move.axes.replace("~", ""))  # noqa: E731
BY_BLOCKS = lambda move: Split(move.theirs, move.ours, by="blocks")  # noqa: E731
AS_IT_IS = lambda move: Rename(move.theirs, move.ours)  # noqa: E731

FAULTS = {
    # what: source, target, table, end of their name, the fault
    "rotary order of q when reading": (LLAMA2C, "hf", META_LLAMA, "attention.wq.weight", ROTARY),
    "rotary order of k when reading": (LLAMA2C, "hf", META_LLAMA, "attention.wk.weight", ROTARY),
    "fused heads in blocks when reading": (CASES / "good_neox_tp2", "hf", NEOX[0], "query_key_value.weight", BY_BLOCKS),
    "fused heads in blocks when writing": (
        CASES / "good_neox_tp2",
        "hf",
        HF["gpt_neox"],
        "query_key_value.weight",
        BY_BLOCKS,
    ),
    "biases of fused heads in blocks": (
        CASES / "good_neox_tp2",
        "hf",
        HF["gpt_neox"],
        "query_key_value.bias",
        BY_BLOCKS,
    ),
    "a square not transposed when writing": (CASES / "good_llmc", "hf", HF["gpt2"], "attn.c_proj.weight", AS_IT_IS),
    "a square not transposed when reading": (
        CASES / "good_gpt2_tied",
        "nanogpt",
        HF["gpt2"],
        "attn.c_proj.weight",
        AS_IT_IS,
    ),
    "gate and up exchanged": (CASES / "good_llama", "dcp", HF["llama"], "mlp.gate_proj.weight", None),
    "head and embedding exchanged": (CASES / "good_llama", "dcp", HF["llama"], "lm_head.weight", None),
    "norms exchanged": (CASES / "good_gpt2_tied", "llmc", NANOGPT, "ln_1.weight", None),
}
EXCHANGED = {
    "mlp.gate_proj.weight": "mlp.up_proj.weight",
    "lm_head.weight": "embed_tokens.weight",
    "ln_1.weight": "ln_2.weight",
}


def faulty(table, end, fault):
    """The moves of a table with one changed; without a fault given, two names are exchanged."""
    if fault is not None:
        return tuple(fault(m) if m.theirs.endswith(end) else m for m in table.moves)
    a = next(m for m in table.moves if m.theirs.endswith(end))
    b = next(m for m in table.moves if m.theirs.endswith(EXCHANGED[end]))
    swap = {a.theirs: replace(a, ours=b.ours, optional=False), b.theirs: replace(b, ours=a.ours, optional=False)}
    return tuple(swap.get(m.theirs, m) for m in table.moves)


@pytest.fixture
def put_into(monkeypatch):
    def put(table, moves):
        assert moves != table.moves
        monkeypatch.setitem(table.__dict__, "moves", moves)
        table.__dict__.pop("_patterns", None)

    yield put
    for table in (*HF.values(), *NEOX, META_LLAMA, NANOGPT):
        table.__dict__.pop("_patterns", None)


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_in_a_table_is_caught_and_nothing_is_kept(what, put_into, tmp_path):
    source, to, table, end, fault = FAULTS[what]
    put_into(table, faulty(table, end, fault))
    with pytest.raises(PretraceError, match="the proof failed") as error:
        convert(str(source), tmp_path / "out", request(to, state="drop"), settings())
    assert "logits" in error.value.what or "transformers" in error.value.what
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["rotary order of k when reading", "a square not transposed when writing"])
def test_a_fault_is_caught_where_values_are_rounded_too(what, put_into, tmp_path):
    source, to, table, end, fault = FAULTS[what]
    put_into(table, faulty(table, end, fault))
    with pytest.raises(PretraceError, match="the proof failed"):
        convert(str(source), tmp_path / "out", request(to, dtype="float16"), settings())


@pytest.mark.parametrize(("damaged", "seen"), [(False, "audit: rows 0 to 31"), (True, "logits of the source")])
def test_padding_on_the_wrong_side_is_caught(damaged, seen, monkeypatch, tmp_path):
    plain = vocabulary._resized

    def shifted(info, rows):
        made = plain(info, rows)
        (kept,) = made.links
        down = (rows - info.shape[0]) * info.shape[1]
        return replace(made, links=(Link(kept.source, kept.sizes, kept.target_strides, kept.source_strides, down),))

    monkeypatch.setattr(vocabulary, "_resized", shifted)
    with pytest.raises(PretraceError, match=f"the proof failed.*{seen}"):
        convert(str(CASES / "good_llama"), tmp_path / "out", request("hf", vocab_rows=352), settings(damaged=damaged))


def test_a_tied_head_that_is_another_is_refused(tmp_path):
    with pytest.raises(PretraceError, match="ties the head"):
        convert(str(CASES / "tied_untied"), tmp_path / "out", request("hf"), settings())
