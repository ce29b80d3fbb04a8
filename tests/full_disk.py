"""A disk that is really full: a small tmpfs that only the started process sees."""

import os
import subprocess
import sys

import pytest

_NAMESPACE = ("unshare", "-rm", "sh", "-c")  # -r: root in a namespace of its own, so that anybody may mount there


def _can_mount():
    probe = [*_NAMESPACE, "mount -t tmpfs -o size=4k tmpfs /mnt"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


needs_mount = pytest.mark.skipif(not _can_mount(), reason="mounting a small file system is not permitted here")


def run_on_small_disk(disk, program, *arguments, ballast_kb=0, imports_from=""):
    """Runs a Python program whose `disk` (an empty folder) holds 300 kB, `ballast_kb` of them taken; its finished process."""
    fill = f"; head -c {ballast_kb}k /dev/zero > {disk}/ballast" if ballast_kb else ""
    script = f'mount -t tmpfs -o size=300k tmpfs {disk}{fill} && exec "$@"'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, imports_from]))}
    words = [*_NAMESPACE, script, "sh", sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, env=env, check=False)
