import contextlib
import errno
import hashlib
import json
import os
import shutil

import pytest

import pretrace.files
import tiny_recipe
from full_disk import needs_mount, run_on_small_disk
from pretrace.errors import PretraceError
from pretrace.recipe import to_yaml
from pretrace.train import RunFolder, resume, run
from runs import assert_same, assert_whole, log


def full_disk(monkeypatch, times, after=0):
    """Flushing a file finds the disk full `times` times, after `after` flushes that went well."""
    calls = iter(range(10**6))
    inner = os.fsync

    def fsync(fd):
        if after <= next(calls) < after + times:
            raise OSError(errno.ENOSPC, "No space left on device")
        inner(fd)

    monkeypatch.setattr(pretrace.files.os, "fsync", fsync)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_stops_the_run_and_leaves_the_last_whole_checkpoint(tmp_path, monkeypatch, asynchronous):
    recipe = tiny_recipe.recipe(tmp_path, checkpoints__at=[4, 8], checkpoints__asynchronous=asynchronous)
    fill_at(monkeypatch, 8)
    with pytest.raises(PretraceError, match=r"disk is full; the last whole checkpoint is step-00000004") as caught:
        run(recipe, tmp_path / "run")
    assert "--resume" in caught.value.mend
    monkeypatch.undo()
    assert list(RunFolder(tmp_path / "run").whole_checkpoints()) == [4]
    assert_whole(tmp_path / "run")
    resume(tmp_path / "run")
    run(recipe, tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_never_began_is_begun_by_the_same_command_or_with_another_recipe(tmp_path, monkeypatch):
    recipe = tiny_recipe.recipe(tmp_path, checkpoints__at=[0])
    fill_at(monkeypatch, 0)
    with pytest.raises(PretraceError, match="no whole checkpoint yet") as caught:
        run(recipe, tmp_path / "run")
    monkeypatch.undo()
    assert "run the same command again" in caught.value.mend
    assert caught.value.where.startswith(str(RunFolder(tmp_path / "run").checkpoint(0)))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert run(recipe.with_values({"steps": 3}), tmp_path / "other").steps == 3
    assert run(recipe, tmp_path / "run").steps == 12
    with pytest.raises(PretraceError, match="holds a run already"):
        run(recipe, tmp_path / "run")


def fill_at(monkeypatch, step):
    """The disk is full while the checkpoint of `step` is written."""
    from pretrace.train import save

    inner = save.write_safetensors

    def write(path, *args, **kwargs):
        if f"step-{step:08d}" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        inner(path, *args, **kwargs)

    monkeypatch.setattr(save, "write_safetensors", write)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_costs_one_checkpoint_where_that_is_declared(tmp_path, monkeypatch, asynchronous):
    recipe = tiny_recipe.recipe(
        tmp_path, checkpoints__at=[4, 8], checkpoints__when_full="go_on", checkpoints__asynchronous=asynchronous
    )
    fill_at(monkeypatch, 4)
    result = run(recipe, tmp_path / "run")
    assert list(result.checkpoints) == [8, 12]
    said = [row["notes"]["incident"] for row in log(tmp_path / "run") if "incident" in row["notes"]]
    assert len(said) == 1
    assert "the disk is full" in said[0]


def test_the_last_state_must_be_saved_even_where_checkpoints_may_fail(tmp_path, monkeypatch):
    recipe = tiny_recipe.recipe(tmp_path, checkpoints__at=[4], checkpoints__when_full="go_on")
    fill_at(monkeypatch, 12)
    with pytest.raises(PretraceError, match="the last state was not saved"):
        run(recipe, tmp_path / "run")
    assert list(RunFolder(tmp_path / "run").whole_checkpoints()) == [4]


def test_a_full_disk_at_any_flush_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    recipe = tiny_recipe.recipe(tmp_path, steps=4)
    for after in range(0, 60, 7):
        full_disk(monkeypatch, 1, after)
        out = tmp_path / f"run-{after}"
        with contextlib.suppress(PretraceError):  # of the first flushes every one ends the run
            run(recipe, out)
        monkeypatch.undo()
        assert_whole(out)
        assert not list(out.rglob(".tmp-*"))


def test_checkpoints_written_in_the_background_are_those_written_at_once(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path, checkpoints__every=1)
    run(recipe, tmp_path / "a")
    run(recipe.with_values({"checkpoints.asynchronous": True}), tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")
    for step in range(13):
        a, b = (RunFolder(tmp_path / n).checkpoint(step) / "model.safetensors" for n in "ab")
        assert a.read_bytes() == b.read_bytes()


def test_background_saves_fill_in_the_digest_that_hubs_show(tmp_path):
    run(tiny_recipe.recipe(tmp_path, steps=2, checkpoints__asynchronous=True), tmp_path / "run")
    checkpoint = RunFolder(tmp_path / "run").checkpoint(2)
    entry = json.loads((checkpoint / "manifest.json").read_text())["files"]["model.safetensors"]
    assert entry["sha256"] == hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert_whole(tmp_path / "run")


REALLY_FULL = """
import sys
from pathlib import Path
from pretrace.errors import PretraceError
from pretrace.recipe import load
from pretrace.train import RunFolder, run
from runs import assert_whole
out = Path(sys.argv[1]) / "run"
try:
    run(load(sys.argv[2]), out)
except PretraceError as error:
    print(error.what)
assert_whole(out)
print(sorted(RunFolder(out).whole_checkpoints()))
"""


@needs_mount
def test_a_really_full_disk_stops_the_run_and_leaves_the_last_whole_checkpoint(tmp_path):
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_recipe.recipe(tmp_path, checkpoints__at=[1, 2, 3, 4])))
    (tmp_path / "disk").mkdir()
    done = run_on_small_disk(tmp_path / "disk", REALLY_FULL, tmp_path / "disk", tmp_path / "recipe.yaml")
    assert done.returncode == 0, done.stderr[-2000:]
    said, whole = done.stdout.splitlines()
    assert "the disk is full; the last whole checkpoint is step-" in said
    assert whole.startswith("[1")
    assert "4" not in whole
