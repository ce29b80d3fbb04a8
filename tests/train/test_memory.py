"""What is freed is taken again without asking the system, counted in page faults by a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from pretrace.train import memory

PROGRAM = """
import resource, runpy, sys
# the file alone: the package imports torch
keep_freed_memory = runpy.run_path(sys.argv[3])["keep_freed_memory"]
size = int(sys.argv[2])
kept = sys.argv[1] == "keep" and keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * size  # malloc, and every page written
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(int(kept), faults())
"""


def run(how):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(64 << 20), str(Path(memory.__file__))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kept, faults = map(int, done.stdout.split())
    return bool(kept), faults


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_64_mib_freed_and_taken_again_cost_no_page_faults():
    assert run("as it is")[1] > 10_000  # 16,384 pages of 4 KiB
    kept, faults = run("keep")
    assert kept
    assert faults < 100
