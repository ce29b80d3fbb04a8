"""All 49 public-fault fixtures: each fault is seen by the checks that can see it, at its place; nothing sound is accused.

`seen_by` of cases.json is the specification: `audit:X` must be an audit finding of the group X, `compare` a difference
against the reference at the named tensors, `verify:loss` a check that is listed as not made when no probe is given.
"""

import json
import re
from functools import lru_cache

import pytest

from assets import checkpoint_cases
from pretrace import audit, compare
from pretrace.audit.several import series
from pretrace.checkpoint import open_state
from pretrace.compare.steps import steps_in

CASES = json.loads((checkpoint_cases() / "cases.json").read_text())
BY_ID = {case["id"]: case for case in CASES}
SOUND = [case["id"] for case in CASES if case["level"] in ("ok", "info")]
FAULTY = [case["id"] for case in CASES if case["level"] in ("error", "warn")]

# Where the fault is, as a pattern that the finding's place or sentence must match.
PLACES = {
    "truncated_shard": r"model-00003-of-00003",
    "index_missing_file": r"model-00002-of-00003",
    "lfs_pointer": r"model-00001-of-00003",
    "header_length_lie": r"model\.safetensors",
    "header_overlap": r"\bb\b",
    "header_out_of_file": r"\bb\b",
    "header_shape_bytes": r"\bb\b",
    "header_hole": r"end of file",
    "header_dup_key": r"'a'",
    "bit_flip_exponent": r"layers\.1\.mlp\.dense_h_to_4h\.weight.*5000",
    "nan_one": r"layers\.2\.attention\.dense\.weight \[3, 7\]",
    "fp16_overflow": r"layers\.0\.mlp\.dense_4h_to_h\.weight.*6,295 infinities among 16,384.*cast to float16",
    "quarter_rows": r"columns 25% to 100% \(slices 1 to 3 of 4 equal ones\) of 14 tensors.*1 of 4 hosts",
    "fsdp_axis_zeros": r"rows 25% to 100% \(slices 1 to 3 of 4 equal ones\) of 9 tensors",
    "pad_rows_garbage": r"rows 256 to 319 of gpt_neox\.embed_in\.weight",
    "duplicated_layer": r"layer 2 is a copy of layer 0",
    "missing_and_extra_key": r"layers\.1\.attention\.dense\.bias",
    "mixed_dtype": r"layers\.\{1,2\}\.mlp\.up_proj\.weight",
    "conv1d_transposed_shape": r"h\.1\.mlp\.c_fc\.weight.*transposed",
    "tied_untied": r"lm_head\.weight.*wte\.weight",
    "pickle_open": r"io\.open",
    "pickle_pathlib": r"pytorch_model\.bin",
    "zip_bomb": r"data/0",
    "bin_crc": r"data/0",
    "neox_optimizer_step": r"zero_pp_rank_0_mp_rank_0\d_optim_states",
    "neox_norm_ranks_differ": r"layer_03",
    "neox_missing_rank": r"layer_04-model_01-model_states\.pt",
    "neox_latest_dangling": r"latest.*global_step500",
    "trajectory_same_step": r"step200 holds the same files as step100",
    "trajectory_final_shard": r"step200/model-00001-of-00002\.safetensors is byte-identical to step400",
    "llmc_layer_count": r"model\.bin",
    "dcp_missing_file": r"__2_0\.distcp",
    "orbax_host0_only": r"chunk",
}

# What `compare` must say about the tensors that differ: names, and the move where it is a layout.
COMPARED = {
    "bit_flip_exponent": (r"layers\.1\.mlp\.dense_h_to_4h\.weight", "", 1),
    "bit_flip_mantissa": (r"layers\.1\.mlp\.dense_h_to_4h\.weight", "", 1),
    "nan_one": (r"layers\.2\.attention\.dense\.weight", "", 1),
    "swapped_layers": (r"layers\.[12]\.", r"equals .*layers\.[12]\..* of A", 24),
    "duplicated_layer": (r"layers\.2\.", r"equals .*layers\.0\..* of A", 12),
    "conv1d_transposed_square": (r"attn\.c_proj\.weight", "transpose", 3),
    "qkv_not_interleaved": (r"query_key_value", r"\[q\|k\|v\] -> per-head \(q,k,v\)", 6),
    "rope_interleaved": (r"self_attn\.[qk]_proj\.weight", "interleaved -> half-split rotary pairs", 6),
}


@lru_cache
def audited(case):
    path = checkpoint_cases() / case
    steps = steps_in(path)
    return series(steps, case) if len(steps) > 1 else audit.checkpoint(path, threads=1)


def groups(found, *severities):
    return {finding.code.split("-")[0] for finding in found.findings if finding.severity in severities}


def test_there_are_11_sound_and_38_faulty_cases():
    assert (len(SOUND), len(FAULTY)) == (11, 38)


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_checkpoint_is_not_accused(case):
    found = audited(case)
    assert [f for f in found.findings if f.severity != "info"] == []
    assert found.outcome == "pass"


def test_vocabulary_padding_is_an_info_line():
    (finding,) = audited("good_padded_vocab").findings
    assert (finding.severity, finding.code) == ("info", "zero-region-padding")
    assert "rows 256 to 319" in finding.what


AUDITED = [c for c in FAULTY if any(s.startswith("audit:") for s in BY_ID[c]["seen_by"])]


@pytest.mark.parametrize("case", AUDITED)
def test_a_fault_is_found_by_the_named_check_at_its_place(case):
    found = audited(case)
    severity = "error" if BY_ID[case]["level"] == "error" else "warning"
    wanted = {s.removeprefix("audit:").split("_")[0] for s in BY_ID[case]["seen_by"] if s.startswith("audit:")}
    hits = [f for f in found.findings if f.severity == severity and f.code.split("-")[0] in wanted]
    assert hits, found.findings
    assert any(re.search(PLACES[case], f"{f.what} {f.where}") for f in hits), hits
    assert all(f.mend for f in hits)
    assert found.outcome == ("fail" if severity == "error" else "pass")


@pytest.mark.parametrize("case", [c for c in FAULTY if "compare" in BY_ID[c]["seen_by"]])
def test_comparing_with_the_reference_names_the_tensors_and_the_move(case):
    name, move, count = COMPARED[case]
    cases = checkpoint_cases()
    found = compare.tensors(open_state(cases / BY_ID[case]["reference"]), open_state(cases / case), threads=1)
    assert len(found.different) == count
    assert all(
        re.search(name, t.name) and re.search(move, t.move) and bool(t.move) == bool(move) for t in found.different
    )


LAYOUTS = [c for c in FAULTY if "verify:loss" in BY_ID[c]["seen_by"]]


@pytest.mark.parametrize("case", LAYOUTS)
def test_what_only_a_probe_or_a_reference_can_see_is_listed_as_not_checked(case):
    not_run = {check.check for check in audited(case).checks_not_run}
    assert {"layouts against a reference", "loss on a probe text"} <= not_run


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_audit_finds_a_layout_with_a_reference(case):
    cases = checkpoint_cases()
    with open_state(cases / BY_ID[case]["reference"]) as reference:
        found = audit.checkpoint(cases / case, reference=reference, threads=1)
    assert groups(found, "error") == {"layout"}


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_audit_finds_a_layout_with_a_probe(case):
    cases = checkpoint_cases()
    good = BY_ID[case]["reference"]
    probe = audit.read_probe(cases / good / "probe.npz", str(cases / case))
    assert groups(audit.checkpoint(cases / case, probe=probe, threads=1), "error") == {"verify"}
    assert groups(audit.checkpoint(cases / good, probe=probe, threads=1), "error", "warning") == set()


def test_a_flipped_mantissa_bit_is_found_against_a_reference_only():
    cases = checkpoint_cases()
    assert audited("bit_flip_mantissa").outcome == "pass"
    with open_state(cases / "good_neox") as reference:
        found = audit.checkpoint(cases / "bit_flip_mantissa", reference=reference)
    assert [(f.code, f.where) for f in found.findings] == [
        ("reference-bits", "gpt_neox.layers.1.mlp.dense_h_to_4h.weight")
    ]


@pytest.mark.parametrize("case", ["pickle_open", "pickle_pathlib"])
def test_nothing_in_a_file_is_run(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    audit.checkpoint(checkpoint_cases() / case)
    assert list(tmp_path.iterdir()) == []
