"""Several writers of one target: processes that share a folder, and processes that see different ones, as hosts might."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from assets import checkpoint_cases
from convert_lab import request, settings
from pretrace.convert import units
from pretrace.convert.plan import plan
from pretrace.convert.run import convert
from pretrace.convert.source import open_source
from pretrace.convert.together import Together, from_environment
from pretrace.errors import PretraceError

SOURCE = checkpoint_cases() / "good_llama"


def writers(targets, *more, **environment):
    """One `pretrace convert` a target, all at once; their exit codes and messages."""
    command = [sys.executable, "-m", "pretrace", "convert", str(SOURCE)]
    started = [
        subprocess.Popen(
            [*command, str(target), "--to", "hf", "--no-logits", "--hosts", str(len(targets)), "--host", str(k), *more],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment,
        )
        for k, target in enumerate(targets)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], said


def test_four_writers_that_share_a_folder_write_what_one_writes(tmp_path):
    convert(str(SOURCE), tmp_path / "alone", request("hf"), settings(logits=False))
    codes, said = writers([tmp_path / "shared"] * 4, "--run-id", "a", "--shard-size", "100kB")
    assert codes == [0] * 4, said
    record = json.loads((tmp_path / "shared" / "conversion.json").read_text())
    assert record["proof"]["round_trip"] == "bitwise"
    assert len(record["files"]) > 4
    assert "WRITTEN   writer 3 of 4" in said[3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "shared"]


def test_four_writers_on_four_disks_are_refused_before_a_tensor_is_written(tmp_path):
    folders = [tmp_path / f"host{k}" for k in range(4)]
    for folder in folders:
        folder.mkdir()
    codes, said = writers([folder / "out" for folder in folders], "--run-id", "b", "--wait", "5")
    assert codes == [2] * 4
    assert "nothing was written: rank 2 on " in said[2]
    assert "does not see the files of ranks 0, 1, 3" in said[2]
    assert [list(folder.rglob("*")) for folder in folders] == [[], [], [], []]


def test_writers_of_one_run_with_other_options_are_refused_at_the_meeting(tmp_path):
    # Writer 0 would wait a day for the share of a plan that nobody writes.
    said = {}

    def meet(host, plan):
        try:
            Together(2, host, "run", timeout_s=0.3 + host).meet(tmp_path, plan)
        except PretraceError as error:
            said[host] = error.what

    started = [threading.Thread(target=meet, args=(host, "ab"[host] * 64)) for host in (0, 1)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    assert said.keys() == {0, 1}
    assert (
        said[0]
        == "nothing was written: writers of the same --run-id were started with other options, or on another model"
    )
    assert not list(tmp_path.iterdir())


def test_each_writer_may_read_a_copy_of_the_source_of_its_own(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "copy")
    here, there = (plan(open_source(source), request("hf")) for source in (SOURCE, tmp_path / "copy"))
    assert here.agreement == there.agreement
    assert here.digest != there.digest  # a stopped conversion goes on only with the very files
    assert here.agreement != plan(open_source(SOURCE), request("hf", dtype="bfloat16")).agreement


def test_shares_are_of_all_units_once_and_nearly_equal():
    listed = [units.Unit("copy", (f"t{k}",), 1000 + 10 * k, 0) for k in range(30)]
    shares = [units.share_of(listed, 4, host) for host in range(4)]
    assert sorted(u.tensors for share in shares for u in share) == sorted(u.tensors for u in listed)
    loads = [sum(u.size_bytes for u in share) for share in shares]
    assert max(loads) - min(loads) < 1300


def test_a_writer_that_never_finishes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Together, "meet", lambda self, folder, plan: None)
    together = Together(2, 0, "c", finish_s=0.3)
    with pytest.raises(PretraceError, match="writer 1 did not finish"):
        convert(str(SOURCE), tmp_path / "out", request("hf"), settings(logits=False, together=together))
    assert not (tmp_path / "out").exists()


def test_what_a_writer_says_it_wrote_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(Together, "meet", lambda self, folder, plan: None)
    convert(str(SOURCE), tmp_path / "out", request("hf"), settings(logits=False, together=Together(2, 1, "d")))
    share = tmp_path / ".pretrace-convert-out" / "share-1.json"
    said = json.loads(share.read_text())
    name = next(iter(said["tensors"]))
    said["tensors"][name] = "0" * 32  # its writes did not arrive
    share.write_text(json.dumps(said))
    with pytest.raises(PretraceError, match=f"writer 1 wrote of {name} is not what is read here"):
        convert(str(SOURCE), tmp_path / "out", request("hf"), settings(logits=False, together=Together(2, 0, "d")))
    assert not (tmp_path / "out").exists()


def test_writers_are_counted_by_the_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert from_environment(0, 0, "", 60.0) == Together(4, 3, "run")
    assert from_environment(2, 1, "mine", 60.0) == Together(2, 1, "mine")
    with pytest.raises(PretraceError, match="writer 5 of 2"):
        from_environment(2, 5, "", 60.0)
