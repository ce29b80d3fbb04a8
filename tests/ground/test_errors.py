import errno
import os
import pickle

import pytest

from pretrace.errors import PretraceError, from_os_error, naming


def test_prints_what_where_and_mend_on_lines_of_their_own():
    error = PretraceError("sample 41 needs 2,049 tokens", "corpus_00.idx, doc_idx[7]", "rebuild sample_idx")
    assert str(error).splitlines() == [
        "sample 41 needs 2,049 tokens",
        "  where   corpus_00.idx, doc_idx[7]",
        "  mend    rebuild sample_idx",
    ]


def test_crosses_a_process_border_whole():
    error = pickle.loads(pickle.dumps(PretraceError("a", "b", "c", exit_code=3)))
    assert (error.what, error.where, error.mend, error.exit_code) == ("a", "b", "c", 3)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR])
def test_a_fault_of_the_system_names_the_file_and_a_way_out(number):
    error = from_os_error(OSError(number, os.strerror(number)), "/data/books.bin", doing="writing")
    assert error.what.startswith("writing: books.bin ")
    assert error.where == "/data/books.bin"
    assert error.mend


def test_that_a_file_was_being_read_goes_without_saying():
    error = from_os_error(FileNotFoundError(errno.ENOENT, "No such file"), "/data/rows.jsonl", doing="reading")
    assert error.what == "rows.jsonl does not exist"


def test_naming_turns_a_missing_file_into_one_error(tmp_path):
    with pytest.raises(PretraceError, match=r"absent\.txt does not exist"), naming(tmp_path / "absent.txt"):
        (tmp_path / "absent.txt").read_text()
