"""The start script of rented machines, played: the volume is kept or lost, the mirror is a real S3 server on loopback."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny_recipe
from pretrace.recipe import to_yaml
from pretrace.train import RunFolder, run
from runs import assert_same, assert_whole

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(s3_server):
    """A bucket `runs` on moto's server."""
    s3_server.mkdir("runs")
    return "s3://runs/pod"


def with_environment(volume):
    """A volume whose environment is built from today's constraints: this interpreter under another name."""
    binaries = volume / "environment" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} "$@"\n')
    (binaries / "python").chmod(0o755)
    built_from = b"".join((ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml"))
    (volume / "environment" / "built-from").write_text(hashlib.sha256(built_from).hexdigest() + "\n")
    return volume


def start(volume, recipe, store):
    variables = {"VOLUME": str(volume), "RECIPE": str(recipe), "RUN": "books", "MIRROR": store}
    command = ["bash", str(ROOT / "scripts" / "start-pod.sh"), "--log-to", "none"]
    return subprocess.Popen(command, env=os.environ | variables, start_new_session=True)


def wait_for(found, seconds=120):
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_a_pod_that_is_killed_goes_on_from_its_volume_and_one_that_comes_back_empty_from_the_mirror(tmp_path, store):
    import s3fs

    recipe = tiny_recipe.recipe(tmp_path).with_values({"steps": 300, "checkpoints.every": 20, "checkpoints.at": [0],
                                                       "data.order.num_samples": 1200})  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    log = tmp_path / "volume" / "runs" / "books" / "log.jsonl"

    pod = start(with_environment(tmp_path / "volume"), tmp_path / "recipe.yaml", store)
    wait_for(lambda: log.is_file() and log.stat().st_size > 20_000)
    os.killpg(pod.pid, signal.SIGKILL)
    assert pod.wait(30) == -signal.SIGKILL

    pod = start(tmp_path / "volume", tmp_path / "recipe.yaml", store)  # the volume was kept
    wait_for(lambda: s3fs.S3FileSystem(use_listings_cache=False).glob("runs/pod/checkpoints/*/manifest.json")[2:])
    os.killpg(pod.pid, signal.SIGKILL)
    pod.wait(30)
    shutil.rmtree(tmp_path / "volume")

    pod = start(with_environment(tmp_path / "volume"), tmp_path / "recipe.yaml", store)  # it comes back empty
    assert pod.wait(200) == 0
    run(recipe, tmp_path / "whole")
    assert_same(log.parent, tmp_path / "whole", 300)
    assert_whole(log.parent)
    assert 300 in RunFolder(log.parent).whole_checkpoints()
