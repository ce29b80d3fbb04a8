"""Runs commands interleaved, each in a process of its own; keeps wall time, CPU time and peak memory.

Used by the scripts beside it. Imports nothing large: Linux counts the memory of the parent at the fork as a child's peak.
"""

import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Runs:
    """One contestant: its command and what its runs took."""

    name: str
    command: list[str]
    gigabytes: float
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    output: str = ""
    code: int = 0

    def once(self, env):
        with tempfile.TemporaryFile("w+") as out:
            began = time.perf_counter()
            process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT, env=env)
            _, status, used = os.wait4(process.pid, 0)
            self.wall.append(time.perf_counter() - began)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            self.output, self.code = out.read(), process.returncode
        self.cpu.append(used.ru_utime + used.ru_stime)
        self.peak_mib.append(used.ru_maxrss / 1024)

    def row(self, width):
        best, middle = min(self.wall), statistics.median(self.wall)
        rate = f"{self.gigabytes / best:6.2f}" if self.gigabytes else "     -"
        return (f"{self.name:<{width}} {best:8.2f} {middle:8.2f} {min(self.cpu):8.2f} {rate} {max(self.peak_mib):9.0f}   "
                f"{_last(self.output)}")  # fmt: skip


def interleave(contestants, runs, env=None, before=None, prefix=""):
    """`runs` rounds over all contestants; `before` is called before each run (to empty the page cache).

    `prefix`: words before every command; `chrt -r 1` keeps a busy machine's other work out of the figures.
    """
    for one in contestants:
        one.command = [*prefix.split(), *one.command]
    env = {**os.environ, **(env or {})}
    for _ in range(runs):
        for one in contestants:
            if before is not None:
                before()
            one.once(env)


def table(contestants, title):
    width = max(len(c.name) for c in contestants)
    print(f"\n{title}\n{machine()}")
    print(f"{'':<{width}} {'min s':>8} {'median':>8} {'cpu s':>8} {'GB/s':>6} {'peak MiB':>9}   says")
    for one in contestants:
        print(one.row(width))


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


def read_all(folder):
    """Reads every file in 4 MiB pieces: the floor that no reader can beat."""
    buffer = bytearray(1 << 22)
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            while os.readv(fd, [buffer]):
                pass
            os.close(fd)


def evict(folder):
    """Drops the pages of a folder's files from the cache of the system."""
    for file in Path(folder).rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _last(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "")[:110]
