import math

import numpy as np
import pytest

from pretrace.errors import PretraceError
from pretrace.evaluate.rows import Fault, Row, Samples, read_rows, write_rows

ROW = Row(
    "hellaswag", 3, 1, "choice", "She opens", " the door", -3.5, False, gold=0,
    tokens=np.array([262, 3420]), logprobs=np.array([-1.1, -2.4], np.float32), starts=np.array([0, 4]),
    seen=np.array([2, 3]), faults=(Fault("context-cut", "5 of 7 tokens"),), document={"label": 0, "ind": 24},
    metrics={"acc": 0.0},
)  # fmt: skip


def written(tmp_path, *rows, **about):
    path = tmp_path / "samples-hellaswag.jsonl.zst"
    write_rows(path, Samples({"task": "hellaswag", "n_rows": len(rows), **about}, rows))
    return path


def test_rows_come_back_with_the_same_bits(tmp_path):
    (row,) = read_rows(written(tmp_path, ROW)).rows
    for name in Row.__dataclass_fields__:
        ours, theirs = getattr(ROW, name), getattr(row, name)
        assert np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs, name
    assert row.logprobs.dtype == np.float32


def test_a_row_without_a_number_comes_back_as_nan_and_is_not_scored(tmp_path):
    empty = Row("lambada_openai", 0, 0, "loglikelihood", "a", "", math.nan, None, faults=(Fault("empty-continuation"),))
    (row,) = read_rows(written(tmp_path, empty)).rows
    assert math.isnan(row.loglikelihood)
    assert not row.scored
    assert row.greedy is None


def test_a_note_leaves_the_row_scored():
    assert ROW.scored


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = written(tmp_path, *[ROW] * 300)
    for share in (0.0, 0.3, 0.9):
        cut = tmp_path / "cut.jsonl.zst"
        cut.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        with pytest.raises(PretraceError, match="no rows that can be read"):
            read_rows(cut)


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "x.jsonl.zst"
    other.write_bytes(b'{"doc_id": 0}\n')
    with pytest.raises(PretraceError, match="no rows that can be read"):
        read_rows(other)
