import gzip

import pytest

from pretrace.errors import PretraceError
from pretrace.evaluate.data_files import parse


def file(tmp_path, text, name="rows.jsonl"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_rows_are_counted_packed_or_not(tmp_path):
    text = '{"text": "a"}\n\n{"text": "b"}\n'
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        (found,) = parse([f"toy:train={file(tmp_path, text, name)}"])
        assert (found.task, found.split, found.n_rows, found.loader) == ("toy", "train", 2, "json")


def test_a_row_without_its_key_is_named(tmp_path):
    path = file(tmp_path, '{"a": 1, "b": 2}\n' * 5 + '{"a": 1}\n{"a": 1, "b": null}\n')
    with pytest.raises(
        PretraceError, match=r"2 rows are not like the others: row 5 \(line 6\): no b; row 6 \(line 7\): no b"
    ):
        parse([f"toy={path}"])


def test_a_row_that_is_not_json_is_named(tmp_path):
    path = file(tmp_path, '{"a": 1}\n{"a": \n')
    with pytest.raises(PretraceError, match="row 1 is not JSON") as error:
        parse([f"toy={path}"])
    assert "line 2" in error.value.where


@pytest.mark.parametrize("option", ["rows.jsonl", "toy=", "=x.jsonl", "toy=rows.txt", "toy=absent.jsonl"])
def test_what_is_no_file_of_rows_is_refused(option):
    with pytest.raises(PretraceError):
        parse([option])


def test_a_packed_file_that_is_cut_is_refused(tmp_path):
    path = file(tmp_path, '{"a": 1}\n' * 999, "rows.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PretraceError, match="cannot be read"):
        parse([f"toy={path}"])


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(PretraceError, match="no rows"):
        parse([f"toy={file(tmp_path, '')}"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.json", '[{"q": "a"}, {"q": null}]'),
        ("rows.csv", "q,a\nb,c\n,d\n"),
        ("half.jsonl", '{"q": "a"}\n{"a": 1, "q": null}\n'),
    ],
)
def test_what_the_loader_would_fill_with_null_is_refused_in_every_format(tmp_path, name, text):
    with pytest.raises(PretraceError, match=r"row 1.*: no .*q"):
        parse([f"toy={file(tmp_path, text, name)}"])


def test_a_null_in_a_parquet_file_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"q": ["a", None]}), tmp_path / "rows.parquet")
    with pytest.raises(PretraceError, match="row 1: no q"):
        parse([f"toy={tmp_path / 'rows.parquet'}"])


def test_two_files_for_one_split_are_refused(tmp_path):
    path = file(tmp_path, '{"q": "a"}\n')
    with pytest.raises(PretraceError, match="two files for the rows of toy"):
        parse([f"toy={path}", f"toy={path}"])
