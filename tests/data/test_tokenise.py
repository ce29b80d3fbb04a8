"""Text to a pair: the same bytes for any number of workers, after a kill, and never half a file."""

import atexit
import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from assets import unpacked
from full_disk import needs_mount, run_on_small_disk
from pretrace.data import manifest, parts, tokenfile, tokenise, tokenizer, unit_ids
from pretrace.data.corpus import CorpusSpec, read
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import open_pair
from pretrace.data.tokenise import TokeniseSpec
from pretrace.errors import PretraceError
from pretrace.files import only_one
from tiny import tf_example, tf_record

NEOX = next(unpacked("tokenizers").rglob("tokenizer.json"))
VAL = next(unpacked("corpus").rglob("books_val.jsonl*"))
END = "<|endoftext|>"
ODD = [
    "",
    "plain",
    "naïve — “so”",
    "日本語 e\u0301 \u00a0\u2028x",
    f"a{END}b",
    "\x00\x07",
    "    def f():\n\treturn\r\n",
    "\uff26\uff35 \ufb01 \u212b",
]


@cache
def small():
    """A tokenizer that loads in no time, for what does not depend on the ids. Spawned processes make the same one."""
    path = Path(tempfile.mkdtemp()) / "tokenizer.json"
    tokenizer.save(tokenizer.train(["some words of a document"] * 3, 300, specials=(END,)), path)
    atexit.register(shutil.rmtree, path.parent)
    return path


def spec(
    *paths,
    backend="tokenizers",
    file=None,
    judge_every=100,
    special_text="token",
    prepend=None,
    append=END,
    dtype=None,
    empty="drop",
):
    corpus = CorpusSpec(paths=tuple(map(str, paths)), format="jsonl", field="text", holds="text")
    return TokeniseSpec(corpus=corpus, tokenizer=str(file or small()), prepend=prepend, append=append, special_text=special_text,
                        dtype=dtype, empty=empty, backend=backend, judge_every=judge_every)  # fmt: skip


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


def pair_bytes(prefix):
    return [prefix.with_name(prefix.name + s).read_bytes() for s in (".bin", ".idx")]


@pytest.mark.parametrize(
    ("backend", "special_text"),
    [
        ("tokenizers", "token"),
        ("tokenizers", "text"),
        ("fastokens", "token"),
        ("fastokens", "text"),
        ("gigatoken", "token"),
    ],
)
def test_ids_are_those_of_the_tokenizers_library_document_by_document(tmp_path, backend, special_text):
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(NEOX))
    reference.encode_special_tokens = special_text == "text"
    path = write_lines(tmp_path / "a.jsonl", ODD)
    wanted = spec(path, file=NEOX, backend=backend, special_text=special_text)
    manifest = tokenise.tokenise(wanted, tmp_path / "out", workers=0)
    file = open_pair(tmp_path / "out")
    expected = [[*reference.encode(t, add_special_tokens=False).ids, 0] for t in ODD if t]
    assert [file.sequence(i).tolist() for i in range(len(file))] == expected
    assert (manifest["documents"], manifest["documents_without_tokens"]) == (7, 1)
    assert manifest["encoder"].startswith(backend)


def test_begin_and_end_tokens_stand_around_every_document(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["Hello world", "Hello"])
    tokenise.tokenise(spec(path, file=NEOX, prepend=END, append=END, dtype="int32"), tmp_path / "out", workers=0)
    file = open_pair(tmp_path / "out")
    assert file.tokens.dtype == np.int32
    assert file.tokens.tolist() == [0, 12092, 1533, 0, 0, 12092, 0]


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, monkeypatch):
    texts = [d.text[:3000] for d in read(spec(VAL).corpus)] + ODD
    paths = [write_lines(tmp_path / f"{n}.jsonl", texts[n::3]) for n in range(3)]
    monkeypatch.setattr(parts, "UNIT_BYTES", 1 << 40)
    for workers in (0, 2):
        tokenise.tokenise(spec(*paths), tmp_path / f"w{workers}", workers=workers)
    assert pair_bytes(tmp_path / "w0") == pair_bytes(tmp_path / "w2")
    assert not list(tmp_path.glob("*.parts-*"))


TEXTS = [f"text {n} " * (n % 5) for n in range(30)]


def packed(folder, form):
    """A corpus of TEXTS in one file of a form that is read in parts."""
    lines = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=7)
    elif form in ("arrow", "stream.arrow"):
        table = pa.table({"text": TEXTS})
        new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    elif form == "tfrecord":
        path.write_bytes(b"".join(tf_record(tf_example(text=[text.encode()])) for text in TEXTS))
    else:
        pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.ZstdCompressor().compress}
        path.write_bytes(pack[form](lines.removesuffix(b"\n")))
    kind = form.removeprefix("stream.").split(".")[0]
    return CorpusSpec(paths=(str(path),), format=kind, field="text", holds="text")


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "stream.arrow", "tfrecord"])
@pytest.mark.parametrize("unit", [1, 37, 200, 10**6])
def test_units_of_one_file_lose_no_document_and_their_sizes_add_up(tmp_path, monkeypatch, form, unit):
    monkeypatch.setattr(parts, "UNIT_BYTES", unit)
    monkeypatch.setattr(parts, "BLOCK_BYTES", unit)
    corpus = packed(tmp_path, form)
    units = list(parts.units_of(corpus))
    assert [d.text for u in units for d in u.documents(corpus)] == [d.text for d in read(corpus)] == TEXTS
    assert [u.number for u in units] == list(range(len(units)))
    assert sum(u.size for u in units) == parts.size_of(corpus)
    assert (len(units) > 1) == (unit < 10**6)
    if form in ("arrow", "stream.arrow", "tfrecord"):  # a document has the same name in whatever unit it is read
        assert [d.where for u in units for d in u.documents(corpus)] == [d.where for d in read(corpus)]


@pytest.mark.parametrize("form", ["jsonl.gz", "jsonl.zst", "parquet", "stream.arrow", "tfrecord"])
def test_one_big_file_is_tokenised_by_all_workers_to_the_same_bytes(tmp_path, monkeypatch, form):
    corpus = packed(tmp_path, form)
    whole = spec(tmp_path / f"a.{form}").model_copy(update={"corpus": corpus})
    tokenise.tokenise(whole, tmp_path / "whole", workers=0)
    monkeypatch.setattr(parts, "UNIT_BYTES", 100)
    monkeypatch.setattr(parts, "BLOCK_BYTES", 100)
    for workers in (0, 2) if form == "jsonl.zst" else (0,):  # processes are slow to start
        tokenise.tokenise(whole, tmp_path / f"w{workers}", workers=workers)
        assert pair_bytes(tmp_path / f"w{workers}") == pair_bytes(tmp_path / "whole")


def test_a_packed_file_that_is_cut_is_an_error_in_its_middle_and_finished_parts_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK_BYTES", 20_000)
    corpus = packed(tmp_path, "jsonl.gz")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress((gzip.decompress(path.read_bytes()) + b"\n") * 300, compresslevel=0)[:-40_000])
    with pytest.raises(PretraceError, match="the file is cut") as caught:
        tokenise.tokenise(spec(path).model_copy(update={"corpus": corpus}), tmp_path / "out", workers=0)
    assert caught.value.where == str(path)
    assert list(tmp_path.glob("out.parts-*/*.pkl"))
    assert not list(tmp_path.glob("out.[bij]*"))


SLOW_PART = """
import sys, time
from pathlib import Path
from pretrace.data import tokenise, parts
parts.UNIT_BYTES = 4000
from pretrace.data import unit_ids
real = unit_ids._with_ends
def slowly(*a, **k):
    time.sleep(0.05)
    return real(*a, **k)
unit_ids._with_ends = slowly
import test_tokenise as t
tokenise.tokenise(t.spec(sys.argv[1], file=sys.argv[3]), sys.argv[2], workers=0)
"""


def test_killed_and_started_again_gives_the_bytes_of_an_undisturbed_run(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", [d.text[:2000] for d in read(spec(VAL).corpus)])
    monkeypatch.setattr(parts, "UNIT_BYTES", 4000)
    tokenise.tokenise(spec(path), tmp_path / "whole", workers=0)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.path.dirname(__file__)])}
    words = [str(path), str(tmp_path / "k"), str(small())]  # the same tokenizer file: another one is other work
    killed = subprocess.Popen([sys.executable, "-c", SLOW_PART, *words], env=env)
    limit = time.monotonic() + 60
    while len(list(tmp_path.glob("k.parts-*/*.pkl"))) < 3 and killed.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    finished = len(list(tmp_path.glob("k.parts-*/*.pkl")))
    assert 3 <= finished < len(list(parts.units_of(spec(path).corpus)))
    assert not list(tmp_path.glob("k.bin"))
    made, real = [], unit_ids._run_unit
    monkeypatch.setattr(unit_ids, "_run_unit", lambda task: (made.append(task.unit.number), real(task))[1])
    tokenise.tokenise(spec(path), tmp_path / "k", workers=0)
    assert pair_bytes(tmp_path / "k") == pair_bytes(tmp_path / "whole")
    assert min(made) >= finished - 1  # what was finished is not made again; the last may have been half put in place
    assert not list(tmp_path.glob("k.parts-*"))


def test_a_pair_that_is_finished_is_found_and_a_damaged_one_made_again(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", ["x", "y"])
    first = tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    before = (tmp_path / "out.bin").stat().st_mtime_ns
    assert tokenise.tokenise(spec(path), tmp_path / "out", workers=0) == first
    assert (tmp_path / "out.bin").stat().st_mtime_ns == before
    whole = (tmp_path / "out.bin").read_bytes()
    (tmp_path / "out.bin").write_bytes(whole[::-1])
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert (tmp_path / "out.bin").read_bytes() == whole


def test_files_of_other_work_are_never_written_over(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x", "y"])
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    before = pair_bytes(tmp_path / "out")
    with pytest.raises(PretraceError, match="of another spec"):
        tokenise.tokenise(spec(path, prepend=END), tmp_path / "out", workers=0)
    (tmp_path / "out.json").unlink()  # anybody's pair
    with pytest.raises(PretraceError, match="no manifest says"):
        tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    (tmp_path / "mine.json").write_text("[1]")
    with pytest.raises(PretraceError, match="of another spec"):
        tokenise.tokenise(spec(path), tmp_path / "mine", workers=0)
    assert pair_bytes(tmp_path / "out") == before
    assert {p.name for p in tmp_path.iterdir()} == {"a.jsonl", "out.bin", "out.idx", "mine.json"}


def test_a_pair_that_was_killed_while_it_was_put_in_place_is_put_there_again(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", ["x", "y"])
    real = manifest.write_json
    monkeypatch.setattr(manifest, "write_json", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert (tmp_path / "out.bin").is_file()
    monkeypatch.setattr(manifest, "write_json", real)
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert (tmp_path / "out.json").is_file()


def test_a_remote_pair_of_other_work_is_not_written_over(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    for _ in range(2):
        tokenise.tokenise(spec(path), "memory://kept/pair", workers=0)
    with pytest.raises(PretraceError, match="of another spec"):
        tokenise.tokenise(spec(path, prepend=END), "memory://kept/pair", workers=0)


class _Full:
    """A file on a disk that fills up after some bytes."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, data):
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def disk_with(room):
    return lambda *args, **more: _Full(open(*args, **more), room)


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_full_disk_is_an_error_and_leaves_nothing_that_passes_for_whole(tmp_path, monkeypatch, room):
    path = write_lines(tmp_path / "a.jsonl", [d.text[:3000] for d in read(spec(VAL).corpus)])
    tokenise.tokenise(spec(path), tmp_path / "before", workers=0)
    monkeypatch.setattr(tokenfile, "open", disk_with(room), raising=False)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "")))
    with pytest.raises(PretraceError, match="disk is full"):
        tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("out.") and p.suffix in (".bin", ".idx", ".json")]
    monkeypatch.undo()
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)  # the same command goes on
    assert pair_bytes(tmp_path / "out") == pair_bytes(tmp_path / "before")


def test_full_disk_while_a_part_is_written_is_the_same_error(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", ODD)
    monkeypatch.setattr("pretrace.files.open", disk_with(20), raising=False)
    with pytest.raises(PretraceError, match="disk is full"):
        tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert not list(tmp_path.glob("out.[bi]*"))


def test_wrong_declarations_are_refused_before_anything_is_written(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(PretraceError, match="no token '<bos>'"):
        tokenise.tokenise(spec(path, prepend="<bos>"), tmp_path / "out", workers=0)
    with pytest.raises(PretraceError, match="gives no token"):
        tokenise.tokenise(spec(write_lines(tmp_path / "e.jsonl", [""])), tmp_path / "out", workers=0)
    assert not list(tmp_path.glob("out.[bij]*"))


def test_content_of_a_pair_is_that_of_its_bytes_and_not_of_its_place(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x", "y"])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        tokenise.tokenise(spec(path), tmp_path / name / "out", workers=0)
    assert manifest.content_of(tmp_path / "one" / "out") == manifest.content_of(tmp_path / "two" / "out")
    with open(tmp_path / "one" / "out.bin", "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(PretraceError, match="not the file"):
        manifest.content_of(tmp_path / "one" / "out")


def test_empty_documents_are_dropped_or_keep_their_number(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["", "x", ""])
    for empty, lengths in (("drop", [2]), ("keep", [0, 2, 0])):
        tokenise.tokenise(spec(path, empty=empty), tmp_path / empty, workers=0)
        assert open_pair(tmp_path / empty).lengths.tolist() == lengths


def test_corpus_of_ids_is_written_as_it_stands(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"ids": [5, 6]}\n{"ids": [50276]}\n')
    base = spec(tmp_path / "a.jsonl", file=NEOX)
    ids = base.model_copy(update={"corpus": base.corpus.model_copy(update={"field": "ids", "holds": "ids"})})
    tokenise.tokenise(ids, tmp_path / "out", workers=0)
    assert open_pair(tmp_path / "out").tokens.tolist() == [5, 6, 0, 50276, 0]
    (tmp_path / "a.jsonl").write_text('{"ids": [50277]}\n')
    with pytest.raises(PretraceError, match="outside the tokenizer's 50,277"):
        tokenise.tokenise(ids, tmp_path / "out2", workers=0)


def test_remote_corpus_to_remote_pair_and_back(tmp_path):
    import fsspec

    with fsspec.open("memory://in/a.jsonl", "w") as file:
        file.write("".join(json.dumps({"text": t}) + "\n" for t in ODD))
    local = write_lines(tmp_path / "a.jsonl", ODD)
    tokenise.tokenise(spec("memory://in/a.jsonl"), "memory://out/pair", workers=0)
    tokenise.tokenise(spec(local), tmp_path / "pair", workers=0)
    for suffix, expected in zip((".bin", ".idx"), pair_bytes(tmp_path / "pair")):
        with fsspec.open(f"memory://out/pair{suffix}", "rb") as file:
            assert file.read() == expected
    fetched = open_source(TokenSource(path="memory://out/pair", format="bin_idx"))
    assert fetched.tokens.tolist() == open_pair(tmp_path / "pair").tokens.tolist()
    with pytest.raises(PretraceError, match=r"pear.idx is missing"):
        open_source(TokenSource(path="memory://out/pear", format="bin_idx"))


def test_two_at_once_into_one_target_are_one_and_an_error(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    with only_one(tmp_path / "out", "tokenising"), pytest.raises(PretraceError, match="another process is doing that"):
        tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    assert {p.name for p in tmp_path.iterdir()} == {"a.jsonl", "out.bin", "out.idx", "out.json"}


def test_parts_of_other_work_for_the_same_target_are_removed_and_empty_ones_are_not_left(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    (tmp_path / "out.parts-000000000000").mkdir()
    tokenise.tokenise(spec(path), tmp_path / "out", workers=0)
    with pytest.raises(PretraceError, match="half of a surrogate pair"):
        tokenise.tokenise(spec(write_lines(tmp_path / "b.jsonl", ["a\ud800"])), tmp_path / "out2", workers=0)
    with pytest.raises(PretraceError, match="gives no token"):
        tokenise.tokenise(spec(write_lines(tmp_path / "c.jsonl", ["", ""])), tmp_path / "out3", workers=0)
    assert not list(tmp_path.glob("*.parts-*"))


@pytest.mark.parametrize("target", ["", ".", "..", "/proc/x/y", "a.jsonl/x", "long" * 100])
def test_a_target_that_cannot_be_written_is_one_error(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(PretraceError):
        tokenise.tokenise(spec(path), target, workers=0)
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_target_may_be_named_by_either_of_its_files(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["x"])
    for name in ("out.bin", "v1.0.idx"):
        tokenise.tokenise(spec(path), tmp_path / name, workers=0)
    assert {p.name for p in tmp_path.glob("*.bin")} == {"out.bin", "v1.0.bin"}
    assert {p.name for p in tmp_path.glob("*.json")} == {"out.json", "v1.0.json"}


REALLY_FULL = """
import sys
from pathlib import Path
from pretrace.errors import PretraceError
import test_tokenise as t
disk = Path(sys.argv[2])
try:
    t.tokenise.tokenise(t.spec(sys.argv[1]), disk / "out", workers=0)
except PretraceError as error:
    print(error.what, sorted(p.name for p in disk.iterdir() if "parts" not in p.name))
(disk / "ballast").unlink()
t.tokenise.tokenise(t.spec(sys.argv[1]), disk / "out", workers=0)
print(len(t.open_pair(disk / "out")))
"""


@needs_mount
@pytest.mark.parametrize("ballast", [200, pytest.param(260, marks=pytest.mark.slow)])
def test_a_really_full_disk_is_one_error_and_the_same_command_goes_on(tmp_path, ballast):
    path = write_lines(
        tmp_path / "a.jsonl", [f"{n} word" * 400 for n in range(40)]
    )  # 80 KB of ids in the part, and in the pair
    (tmp_path / "disk").mkdir()
    here = os.path.dirname(__file__)
    done = run_on_small_disk(
        tmp_path / "disk", REALLY_FULL, path, tmp_path / "disk", ballast_kb=ballast, imports_from=here
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said, whole = done.stdout.splitlines()
    assert "the disk is full ['ballast']" in said
    assert whole == "40"


def test_a_manifest_is_not_written_over_the_corpus(tmp_path):
    path = write_lines(tmp_path / "c.json", ["x"])
    with pytest.raises(PretraceError, match="a file of the corpus itself"):
        tokenise.tokenise(spec(path), tmp_path / "c", workers=0)
    assert json.loads(path.read_text()) == {"text": "x"}
