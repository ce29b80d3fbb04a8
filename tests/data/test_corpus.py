"""Corpora of every format, and what is said of damaged ones."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.data import corpus, embedded
from pretrace.data.corpus import CorpusSpec, files_of, read, refuse_target
from pretrace.data.parts import units_of
from pretrace.errors import PretraceError
from tiny import plain_crc32c, tf_example, tf_record

TEXTS = ["one", "two\nlines", "dritter äöü 🙂"]
LINES = "".join(json.dumps({"id": f"d{i}", "text": t, "n": i}) + "\n" for i, t in enumerate(TEXTS)).encode()


def spec(*paths, format="jsonl", field="text", holds="text", **more):
    return CorpusSpec(paths=tuple(map(str, paths)), format=format, field=field, holds=holds, **more)


@pytest.mark.parametrize(
    ("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)]
)
def test_json_lines_plain_and_compressed(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(LINES))
    documents = list(read(spec(tmp_path / name, id_field="id")))
    assert [d.text for d in documents] == TEXTS
    assert [d.name for d in documents] == ["d0", "d1", "d2"]


def test_zstandard_frames_one_after_another_are_one_stream(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(LINES) + zstandard.compress(LINES))
    assert [d.text for d in read(spec(tmp_path / "a.jsonl.zst"))] == TEXTS * 2


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_cut_compressed_file_is_an_error_not_a_short_corpus(tmp_path, pack, cut):
    whole = pack(LINES * 50)
    name = tmp_path / ("a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst")
    name.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(PretraceError, match=r"cut|damaged"):
        list(read(spec(name)))


def test_folder_is_read_in_sorted_order(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.other"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    assert [d.text for d in read(spec(tmp_path))] == ["a.jsonl", "b.jsonl"]


def test_parquet_and_arrow_files(tmp_path):
    table = pa.table({"text": TEXTS, "ids": [[1, 2], [], [3]]})
    pq.write_table(table, tmp_path / "t.parquet")
    for name, opener in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, opener(sink, table.schema) as writer:
            writer.write_table(table)
    for name, form in (("t.parquet", "parquet"), ("s.arrow", "arrow"), ("f.arrow", "arrow")):
        assert [d.text for d in read(spec(tmp_path / name, format=form))] == TEXTS
        ids = [d.ids.tolist() for d in read(spec(tmp_path / name, format=form, field="ids", holds="ids"))]
        assert ids == [[1, 2], [], [3]]


def test_datasets_saved_to_disk_with_their_splits(tmp_path):
    import datasets

    both = datasets.DatasetDict({s: datasets.Dataset.from_dict({"text": [s, "x"]}) for s in ("train", "validation")})
    both.save_to_disk(tmp_path / "d")
    assert [d.text for d in read(spec(tmp_path / "d", format="arrow", split="validation"))] == ["validation", "x"]
    with pytest.raises(PretraceError, match="none is declared"):
        list(read(spec(tmp_path / "d", format="arrow")))
    with pytest.raises(PretraceError, match="no split 'test'"):
        list(read(spec(tmp_path / "d", format="arrow", split="test")))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("file", ["a\nb\n\n\nc"]), ("line", ["a", "b", "c"]), ("paragraph", ["a\nb\n", "c"])],
)
def test_text_files_by_declared_unit(tmp_path, unit, expected):
    (tmp_path / "t.txt").write_text("a\nb\n\n\nc")
    assert [d.text for d in read(spec(tmp_path / "t.txt", format="text", field="", text_unit=unit))] == expected


def test_undeclared_text_unit_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("a")
    with pytest.raises(PretraceError, match="not declared"):
        list(read(spec(tmp_path / "t.txt", format="text", field="")))


TRICKY = [
    '{"text": NaN}', '{"text": "\\ud800"}', '{"text": 1e999}', '{"text": 18446744073709551616}', '{"text": 1, "text": 2}',
    "[" * 2000, '{"text": "\t"}', "{'text': 1}", '{"text": "\\u0000"}', "1 2", '"\\x"', "-0", "1.", "[1,]",
]  # fmt: skip


def value_or_error(line):
    try:
        return repr(corpus._row_of(line, "utf-8"))
    except (ValueError, RecursionError):
        return "error"


@pytest.mark.parametrize("line", TRICKY)
def test_fast_reader_of_json_decides_nothing_that_json_does_not(line, monkeypatch):
    fast = value_or_error(line.encode())
    monkeypatch.setattr(corpus, "_FAST_JSON", None)
    plain = value_or_error(line.encode())
    assert fast == plain or float(fast[9:-1]) == float(plain[9:-1])  # integers beyond 64 bits come as floats: no ids


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    LEAVES, lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(), s, max_size=3), max_leaves=8
)


@settings(max_examples=60, deadline=None)
@given(NESTED, st.booleans())
def test_fast_reader_of_json_gives_the_values_of_json(value, ascii_only):
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        line.decode()
    except UnicodeDecodeError:
        return
    assert corpus._row_of(line, "utf-8") == json.loads(line)


def test_names_of_the_hub_are_loaded_by_datasets(tmp_path, monkeypatch):
    # load_dataset takes a folder for a name: the library itself runs, without the network.
    for name, texts in (("train", TEXTS), ("test", ["other"])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    named = spec(tmp_path, format="hub", split="train")
    assert [d.text for d in read(named)] == TEXTS
    assert [d.text for u in units_of(named) for d in u.documents(named)] == TEXTS
    with pytest.raises(PretraceError, match="none is declared"):
        list(read(spec(tmp_path, format="hub")))
    with pytest.raises(PretraceError, match="cannot be loaded"):
        list(read(spec(tmp_path, format="hub", split="validation")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PretraceError, match="cannot be loaded"):
        list(read(spec("nobody/nothing@main:x", format="hub", split="train")))


def test_linked_folders_are_entered_and_circles_are_not(tmp_path):
    for name in ("real", "corpus"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "a.jsonl").write_bytes(LINES)
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "corpus")
    assert [d.text for d in read(spec(tmp_path / "corpus"))] == TEXTS


def test_manifest_of_a_pair_in_the_folder_is_no_document(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    for suffix in ("bin", "idx"):
        (tmp_path / f"p.{suffix}").write_bytes(b"")
    (tmp_path / "p.json").write_text("{}")
    assert [d.text for d in read(spec(tmp_path))] == TEXTS


def test_a_target_that_is_a_file_of_the_corpus_is_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(LINES)
    (tmp_path / "b").symlink_to(tmp_path / "a.json")
    refuse_target(spec(tmp_path / "a.json"), tmp_path / "c", tmp_path)
    for target in ("a.json", "b"):
        with pytest.raises(PretraceError, match="a file of the corpus itself"):
            refuse_target(spec(tmp_path / "a.json"), tmp_path / target)


def test_paths_of_fsspec(tmp_path):
    import fsspec

    with fsspec.open("memory://corpus/a.jsonl.gz", "wb") as file:
        file.write(gzip.compress(LINES))
    assert [d.text for d in read(spec("memory://corpus"))] == TEXTS
    assert [d.text for d in read(spec("memory://corpus/a.jsonl.gz"))] == TEXTS


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "no document"),
        (b'{"text": 1}\n', "holds int"),
        (b'{"txt": "a"}\n', "no field 'text'"),
        (b'["text"]\n', "no field 'text'"),
        (b'{"text": "a"}\n{"text": "b\n', "this line is not JSON"),
        (b'{"text": "\xff\xfe"}\n', "not JSON|not UTF-8"),
        (b"[" * 100_000 + b"\n", "not JSON"),
    ],
)
def test_bad_json_lines_are_named_with_their_line(tmp_path, content, match):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(PretraceError, match=match) as caught:
        list(read(spec(tmp_path / "a.jsonl")))
    assert "a.jsonl" in caught.value.where


def test_missing_path_and_empty_folder_are_errors(tmp_path):
    with pytest.raises(PretraceError, match="does not exist"):
        files_of(spec(tmp_path / "no.jsonl"))
    with pytest.raises(PretraceError, match="holds no jsonl file"):
        files_of(spec(tmp_path))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1\x00\x00", bytes(1000), b"\xff" * 64])
def test_damaged_columnar_files_are_errors(tmp_path, form, content):
    (tmp_path / f"a.{form}").write_bytes(content)
    with pytest.raises(PretraceError):
        list(read(spec(tmp_path / f"a.{form}", format=form)))


@pytest.mark.parametrize("ids", [["a"], [[1]], [1.5], [-1], [2**31]])
def test_lists_that_are_no_ids_are_refused(tmp_path, ids):
    (tmp_path / "a.jsonl").write_text(json.dumps({"ids": ids}) + "\n")
    with pytest.raises(PretraceError, match=r"ids|token id"):
        list(read(spec(tmp_path / "a.jsonl", field="ids", holds="ids")))


def test_embedded_books_hold_a_third_of_repeated_text():
    documents = list(read(spec(embedded.books(), id_field="id")))
    repeated = sum(len(d.text) for d in documents if d.name.startswith("pg/"))
    total = sum(len(d.text) for d in documents)
    assert (len(documents), total) == (413, 6_162_232)
    assert 0.32 < repeated / total < 0.33


def test_tfrecords_of_text_and_of_ids(tmp_path):
    (tmp_path / "books-train.tfrecord-00000-of-00001").write_bytes(
        tf_record(tf_example(text=[b"first"])) + tf_record(tf_example(text=["zwäi".encode()])))  # fmt: skip
    path = tmp_path / "books-train.tfrecord-00000-of-00001"
    assert [d.text for d in read(spec(path, format="tfrecord"))] == ["first", "zwäi"]
    path.write_bytes(tf_record(tf_example(ids=[1, 300, 70000])) + tf_record(tf_example(ids=[])))
    assert [d.ids.tolist() for d in read(spec(path, format="tfrecord", field="ids", holds="ids"))] == [
        [1, 300, 70000],
        [],
    ]


def test_any_flipped_bit_of_a_tfrecord_is_seen(tmp_path):
    whole = tf_record(tf_example(text=[b"hello"]))
    for place in range(len(whole)):
        raw = bytearray(whole)
        raw[place] ^= 4
        (tmp_path / "a.tfrecord").write_bytes(raw)
        with pytest.raises(PretraceError, match="record at byte 0 is damaged"):
            list(read(spec(tmp_path / "a.tfrecord", format="tfrecord")))


def test_crc32c_is_the_published_check_value():
    from pretrace.data.kernels import crc32c as fast

    assert fast(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283 == plain_crc32c(b"123456789")
