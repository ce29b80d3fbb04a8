"""The log survives what kills its writer."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.runlog import Alarm, LogWriter, Record, records
from pretrace.runlog.record import parse


def record(step, loss=2.5, **more):
    return Record(step=step, loss=loss, lr=1e-3, n_tokens=1024, n_counted=1000, **more)


def write(path, *items):
    with LogWriter(path) as log:
        for item in items:
            log.write(item)


def test_what_is_written_is_read_back(tmp_path):
    alarm = Alarm("spike", "loss > median + 6 MAD", 3.0, math.inf, "loss jumps")
    full = record(1, losses={"micro_mean": 2.4}, grad_norm=math.nan, positions=(0, 8), alarms=(alarm,))
    write(tmp_path / "log.jsonl", full, record(2))
    one, two = records(tmp_path / "log.jsonl")
    assert one.alarms == (alarm,)
    assert math.isnan(one.grad_norm)
    assert (one.positions, one.losses, two) == ((0, 8), {"micro_mean": 2.4}, record(2))


@given(loss=st.floats(allow_nan=False), step=st.integers(1, 1 << 40), norm=st.none() | st.floats(allow_nan=False))
def test_every_number_survives_its_line(loss, step, norm):
    item = record(step, loss, grad_norm=norm)
    assert parse(item.line()) == item


def test_a_line_is_json_for_any_reader(tmp_path):
    write(tmp_path / "log.jsonl", record(1, math.nan))
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] == "nan"


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_half_last_line_is_left_out_and_cut_on_reopening(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    write(path, record(1), record(2))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r.step for r in records(path)] == [1]
    write(path, record(2))
    assert [r.step for r in records(path)] == [1, 2]


def test_a_resumed_run_cuts_the_steps_it_does_again(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, *(record(step, 1.0) for step in range(1, 6)))
    with LogWriter(path, after_step=3) as log:
        log.write(record(4, 9.0))
    assert [(r.step, r.loss) for r in records(path)] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 9.0)]


def test_a_step_written_twice_is_read_as_the_later_line(tmp_path):
    write(tmp_path / "log.jsonl", record(1), record(2, 5.0), record(2, 6.0))
    assert [r.loss for r in records(tmp_path / "log.jsonl")] == [2.5, 6.0]


def test_a_log_that_ends_before_the_checkpoint_is_refused(tmp_path):
    write(tmp_path / "log.jsonl", record(1))
    with pytest.raises(PretraceError, match="ends at step 1"):
        LogWriter(tmp_path / "log.jsonl", after_step=3)


@pytest.mark.parametrize("line", [b"{}\n", b"[1]\n", b'{"step": 1, "loss": "x"}\n', b"\xff\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "log.jsonl"
    write(path, record(1))
    with open(path, "ab") as file:
        file.write(line + record(3).line().encode() + b"\n")
    with pytest.raises(PretraceError) as error:
        records(path)
    assert "line 2" in error.value.where


def test_kill_9_costs_at_most_the_line_in_flight(tmp_path):
    path = tmp_path / "log.jsonl"
    code = ("import sys, itertools; from pretrace.runlog import LogWriter, Record\n"
            "log = LogWriter(sys.argv[1])\n"
            "for n in itertools.count(1): log.write(Record(step=n, loss=1.0, lr=1.0, n_tokens=1, n_counted=1))")  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > 100_000) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=10)
    steps = [r.step for r in records(path)]
    assert len(steps) > 100
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said_in_words(monkeypatch, tmp_path):
    log = LogWriter(tmp_path / "log.jsonl")
    monkeypatch.setattr(log, "_fd", os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(PretraceError, match="disk is full"):
        log.write(record(1))
