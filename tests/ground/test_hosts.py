import subprocess
import sys

import pytest

from pretrace.errors import PretraceError
from pretrace.hosts import prove_shared

PROVE = """
import sys
from pretrace.errors import PretraceError
from pretrace.hosts import prove_shared
folder, rank, size, timeout = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
try:
    print(len(prove_shared(folder, rank=rank, world_size=size, nonce="n", timeout_s=timeout)))
except PretraceError as error:
    print(error.what)
"""


def start(folders, timeout):
    args = [
        [sys.executable, "-c", PROVE, str(f), str(r), str(len(folders)), str(timeout)] for r, f in enumerate(folders)
    ]
    running = [subprocess.Popen(a, stdout=subprocess.PIPE, text=True) for a in args]
    return [p.communicate(timeout=60)[0].strip() for p in running]


def test_processes_in_one_folder_see_each_other(tmp_path):
    assert start([tmp_path] * 3, timeout=30) == ["3", "3", "3"]


def test_processes_with_disks_of_their_own_say_whom_they_do_not_see(tmp_path):
    said = start([tmp_path / "disk0", tmp_path / "disk1"], timeout=1)
    assert "does not see the files of rank 1" in said[0]
    assert "does not see the files of rank 0" in said[1]


def test_tokens_of_an_earlier_start_do_not_count(tmp_path):
    prove_shared(tmp_path, rank=0, world_size=1, nonce="old")
    with pytest.raises(PretraceError, match="rank 1") as caught:
        prove_shared(tmp_path, rank=0, world_size=2, nonce="new", timeout_s=0.2)
    assert "file system that all hosts share" in caught.value.mend
