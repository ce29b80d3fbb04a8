import subprocess
import sys
from pathlib import Path

import pytest

STARTS = Path(__file__).parent.parent / "live" / "starts.py"


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(1500)
def test_200_starts_of_two_processes_with_a_barrier_at_the_end_all_end_well(tmp_path):
    command = [sys.executable, str(STARTS), "200", str(tmp_path), "barrier"]
    env = {
        "PYTHONPATH": ":".join(filter(None, [str(STARTS.parent.parent), *sys.path])),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, env=env)
    assert done.stdout.splitlines()[-1] == "{0: 400}", done.stderr[-2000:]
