"""Corpora and token files at addresses of fsspec: a real S3 server on loopback, and what cannot be reached."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pretrace.data import parts, tokenise, tokenizer
from pretrace.data.corpus import CorpusSpec, read
from pretrace.data.order import DataSpec, open_order
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import open_pair
from pretrace.data.tokenise import TokeniseSpec
from pretrace.errors import PretraceError

TEXTS = [f"document {n} of the bucket" for n in range(20)]
LINES = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()


@pytest.fixture
def bucket(s3_server, monkeypatch, tmp_path):
    """An empty bucket of a real server; its environment is what a worker process sees too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    s3_server.makedirs("books", exist_ok=True)
    return s3_server


def spec(folder, *paths, form="jsonl"):
    if not (folder / "t.json").exists():
        tokenizer.save(tokenizer.train(TEXTS, 300, specials=("<e>",)), folder / "t.json")
    corpus = CorpusSpec(paths=paths, format=form, field="text", holds="text")
    return TokeniseSpec(corpus=corpus, tokenizer=str(folder / "t.json"), prepend=None, append="<e>", empty="drop",
                        special_text="token", dtype=None, backend="tokenizers", judge_every=1)  # fmt: skip


@pytest.mark.interop
@pytest.mark.timeout(180)
def test_corpus_of_a_bucket_becomes_token_files_of_a_bucket(bucket, tmp_path, monkeypatch):
    bucket.pipe("books/in/a.jsonl", LINES)
    bucket.pipe("books/in/b.jsonl.gz", gzip.compress(LINES))
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "c.parquet", row_group_size=4)
    bucket.put_file(str(tmp_path / "c.parquet"), "books/parquet/c.parquet")
    monkeypatch.setattr(parts, "UNIT_BYTES", 400)  # the plain file and the row groups are read in parts
    monkeypatch.setattr(parts, "BLOCK_BYTES", 400)
    assert [d.text for d in read(spec(tmp_path, "s3://books/in").corpus)] == TEXTS * 2
    for form, place, times in (("jsonl", "s3://books/in", 2), ("parquet", "s3://books/parquet", 1)):
        assert len(list(parts.units_of(spec(tmp_path, place, form=form).corpus))) >= 2
        (tmp_path / "a.jsonl").write_bytes(LINES * times)
        tokenise.tokenise(spec(tmp_path, str(tmp_path / "a.jsonl")), tmp_path / f"here-{form}", workers=0)
        for workers in (0, 2) if form == "jsonl" else (0,):
            target = f"s3://books/out/{form}-{workers}"
            tokenise.tokenise(spec(tmp_path, place, form=form), target, workers=workers)
            for suffix in (".bin", ".idx"):
                assert bucket.cat(f"{target}{suffix}") == (tmp_path / f"here-{form}{suffix}").read_bytes()
            assert bucket.exists(f"{target}.json")
    there = open_source(TokenSource(path="s3://books/out/jsonl-2", format="bin_idx"))
    assert there.tokens.tolist() == open_pair(tmp_path / "here-jsonl").tokens.tolist()
    order = open_order(DataSpec(sources=[{"path": "s3://books/out/jsonl-2", "format": "bin_idx"}], seq_len=8,
                                order={"family": "stream", "epochs": 1, "document_seed": 1, "sample_seed": 2, "mix_epochs": True},
                                documents={"eod_id": None, "mask_after_eod": False, "separate_attention": False,
                                           "restart_positions": False}))  # fmt: skip
    assert order.tokens(range(2)).shape == (2, 9)


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_a_bucket_that_is_not_there_or_cannot_be_reached_is_one_error(bucket, tmp_path, monkeypatch):
    with pytest.raises(PretraceError, match="does not exist"):
        list(read(spec(tmp_path, "s3://nowhere/a.jsonl").corpus))
    with pytest.raises(PretraceError, match="missing"):
        open_source(TokenSource(path="s3://books/none", format="bin_idx"))
    bucket.pipe("books/a.jsonl", LINES)
    with pytest.raises(PretraceError, match="nowhere does not exist"):
        tokenise.tokenise(spec(tmp_path, "s3://books/a.jsonl"), "s3://nowhere/out", workers=0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(bucket).clear_instance_cache()
    with pytest.raises(PretraceError, match="cannot be reached"):
        list(read(spec(tmp_path, "s3://books/a.jsonl").corpus))


def test_an_address_of_no_known_kind_is_one_error(tmp_path):
    with pytest.raises(PretraceError, match="no way to open"):
        list(read(spec(tmp_path, "nosuch://x/a.jsonl").corpus))
    (tmp_path / "a.jsonl").write_bytes(LINES)
    with pytest.raises(PretraceError, match="no way to open"):
        tokenise.tokenise(spec(tmp_path, str(tmp_path / "a.jsonl")), "nosuch://out/p", workers=0)
