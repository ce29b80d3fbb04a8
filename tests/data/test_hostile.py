"""Every reader is fed cut, bit-flipped, zeroed, longer and huge-headed files: what comes back is data or one PretraceError."""

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from assets import unpacked
from pretrace.data import check, check_maps, tokenizer
from pretrace.data.corpus import CorpusSpec, read
from pretrace.data.maps import map_spec, write_maps
from pretrace.data.order import DataSpec, open_order
from pretrace.data.tokenfile import open_pair, write_pair
from pretrace.errors import PretraceError
from tiny import tf_example, tf_record

ROWS = [{"text": f"document {n} " * 20, "ids": list(range(n, n + 9))} for n in range(8)]
OLMO = {"family": "olmo", "epochs": 1, "first_epoch": 0, "seed": 1, "drop_last": True, "world_size": 1, "grad_accum_steps": 1,
        "micro_batch": 1}  # fmt: skip
NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def neox():
    return map_spec(
        "neox", num_samples=9, seed=1, split="", part="train", version="v1.0", extra_token=True, keep_partial=False
    )


def lines():
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def arrow(opener):
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([{**row, "input_ids": row["ids"]} for row in ROWS])
    with opener(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue().to_pybytes()


def parquet(**more):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=3, **more)
    return sink.getvalue().to_pybytes()


def tfrecord():
    return b"".join(tf_record(tf_example(text=[row["text"].encode()], ids=row["ids"])) for row in ROWS)


def llmc():
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 100
    return header.tobytes() + np.arange(100, dtype="<u2").tobytes()


CORPORA = {
    "a.jsonl": ("jsonl", lines),
    "a.jsonl.gz": ("jsonl", lambda: gzip.compress(lines(), mtime=0)),
    "a.jsonl.zst": ("jsonl", lambda: zstandard.ZstdCompressor(write_checksum=True).compress(lines())),
    "a.parquet": ("parquet", parquet),
    "s.parquet": ("parquet", lambda: parquet(compression="zstd", use_dictionary=False)),
    "s.arrow": ("arrow", lambda: arrow(pa.ipc.new_stream)),
    "f.arrow": ("arrow", lambda: arrow(pa.ipc.new_file)),
    "a.tfrecord": ("tfrecord", tfrecord),
    "a.txt": ("text", lines),
}


def mutations(whole, n, seed):
    """Cut, flipped, zeroed, filled, doubled, and with a huge number somewhere in the head or the tail."""
    rng = random.Random(seed)
    for _ in range(n):
        raw = bytearray(whole)
        at = rng.randrange(len(raw)) if rng.random() < 0.5 else min(rng.randrange(80), len(raw) - 1)
        at = len(raw) - 1 - at if rng.random() < 0.3 else at
        kind = rng.choice(["cut", "flip", "flip", "flip", "zero", "fill", "huge", "double"])
        if kind == "cut":
            raw = raw[:at]
        elif kind == "flip":
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == "zero":
            raw[at : at + 16] = bytes(len(raw[at : at + 16]))
        elif kind == "fill":
            raw[at : at + 8] = b"\xff" * len(raw[at : at + 8])
        elif kind == "huge":
            raw[at : at + 8] = (1 << rng.choice((31, 40, 62))).to_bytes(8, "little")[: len(raw[at : at + 8])]
        else:
            raw += raw[at:]
        yield bytes(raw)


def survives(call):
    """Whether the call gave data; any exception but the one error type fails the test."""
    try:
        call()
    except PretraceError:
        return False
    return True


@pytest.mark.parametrize("name", CORPORA)
def test_corpora(tmp_path, name):
    form, make = CORPORA[name]
    for field, holds in (("text", "text"), ("ids", "ids")) if form not in ("text",) else (("", "text"),):
        spec = CorpusSpec(paths=(str(tmp_path / name),), format=form, field=field, holds=holds, text_unit="line")
        outcomes = []
        for raw in mutations(make(), 60, name):
            (tmp_path / name).write_bytes(raw)
            outcomes.append(survives(lambda: list(read(spec))))  # noqa: B023
        assert form == "text" or not all(outcomes)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_pairs_and_their_checks(tmp_path, suffix):
    write_pair(tmp_path / "p", [np.arange(n) for n in (5, 9, 3, 0, 40)], "uint16")
    whole = (tmp_path / f"p{suffix}").read_bytes()
    order = map_spec(
        "neox", num_samples=9, seed=1, split="", part="train", version="v1.0", extra_token=True, keep_partial=False
    )
    for raw in mutations(whole, 150, suffix):
        (tmp_path / f"p{suffix}").write_bytes(raw)
        if survives(lambda: open_pair(tmp_path / "p")):
            survives(lambda: open_order(DataSpec(
                sources=[{"path": str(tmp_path / "p"), "format": "bin_idx"}], seq_len=4, documents=NO_RULES,
                order=order.model_dump())).tokens(range(5)))  # fmt: skip
        findings, _ = check.check_pair(tmp_path / "p", check.Declared(eod_id=0, vocab_size=100))
        assert findings
        survives(lambda: check_maps.repair_offsets(tmp_path / "p"))
        write_pair(tmp_path / "p", [np.arange(n) for n in (5, 9, 3, 0, 40)], "uint16")


@pytest.mark.parametrize("form", ["llmc", "raw", "npy", "datatrove", "arrow"])
def test_token_files_of_others(tmp_path, form):
    path = tmp_path / ("a.arrow" if form == "arrow" else "a.bin")
    np.save(tmp_path / "n.npy", np.arange(100, dtype="<u2"))
    whole = {"llmc": llmc(), "raw": np.arange(100, dtype="<u2").tobytes(), "npy": (tmp_path / "n.npy").read_bytes(),
             "datatrove": np.array([3, 40, 100], "<u8").tobytes(), "arrow": arrow(pa.ipc.new_stream)}[form]  # fmt: skip
    source = {"path": str(path), "format": form, "dtype": "uint16" if form in ("raw", "datatrove") else None}
    order = dict(OLMO)
    if form == "arrow":
        order = {"family": "rows", "epochs": 1, "shuffle_seed": 1, "pad_id": 0, "drop_last": 1, "by_piece": False}
    if form == "datatrove":
        order = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": True}
        np.arange(100, dtype="<u2").tofile(path)
    spec = DataSpec(sources=[source], seq_len=16, documents=NO_RULES, order=order)
    for raw in mutations(whole, 100, form):
        (tmp_path / "a.bin.index" if form == "datatrove" else path).write_bytes(raw)

        def everything():
            opened = open_order(spec)
            opened.batch(range(len(opened)))

        survives(everything)


@pytest.mark.parametrize("name", ["doc_idx", "sample_idx", "shuffle_idx"])
def test_maps(tmp_path, name):
    write_pair(tmp_path / "p", [np.arange(n) for n in (5, 9, 3, 0, 40)], "uint16")
    order = map_spec(
        "neox", num_samples=9, seed=1, split="", part="train", version="v1.0", extra_token=True, keep_partial=False
    )
    write_maps(tmp_path / "p", order, 4, tmp_path / "maps")
    path, file = tmp_path / "maps" / f"{name}.npy", open_pair(tmp_path / "p")
    for raw in mutations(path.read_bytes(), 80, name):
        path.write_bytes(raw)
        assert check_maps.check_maps(file, order, 4, tmp_path / "maps")


@pytest.mark.parametrize("name", ["tokenizer.json", "m.model"])
def test_tokenizers(tmp_path, name):
    if name == "m.model":
        import sentencepiece

        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some words of text here"] * 30), model_prefix=str(tmp_path / "m"), vocab_size=30,
            minloglevel=2, num_threads=1, hard_vocab_limit=False)  # fmt: skip
    else:
        tokenizer.save(tokenizer.train(["some words of text here"] * 3, 280, specials=("<e>",)), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for raw in mutations(whole, 60, name):
        (tmp_path / name).write_bytes(raw)
        survives(lambda: tokenizer.load(tmp_path / name).encode("some text"))


def test_a_pickle_in_place_of_a_map_or_ids_runs_nothing(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    source = {"path": str(tmp_path / "a.npy"), "format": "npy"}
    order = dict(OLMO)
    with pytest.raises(PretraceError, match="not a"):
        open_order(DataSpec(sources=[source], seq_len=1, documents=NO_RULES, order=order))


def test_known_tokenizers_survive_a_round_of_damage(tmp_path):
    whole = next(unpacked("tokenizers").rglob("vocab.json"))
    (tmp_path / "merges.txt").write_bytes((whole.parent / "merges.txt").read_bytes()[:5000])
    (tmp_path / "vocab.json").write_bytes(whole.read_bytes())
    survives(lambda: tokenizer.load(tmp_path))
