"""Runs the collecting script here: in processes of its own, or inside those that a launcher started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pretrace.errors import PretraceError, naming
from pretrace.files import write_text
from pretrace.step.orders import Recorded
from pretrace.step.probe_collect import COLLECTIVES, MAGNITUDES

TIMEOUT_S = 600
_SCRIPT = Path(__file__).with_name("probe_collect.py")


def script() -> str:
    """The script for a cluster that has torch and not pretrace."""
    with naming(_SCRIPT, "reading"):
        return _SCRIPT.read_text()


def collect_to(
    out: Path, numels: Sequence[int], dtypes: Sequence[str], collective: str, backend: str, spawn: int
) -> None:
    """Probes and writes the raw file; with `spawn`, in so many new local processes, else as one of a launcher's.

    Raises
    ------
    PretraceError
        If an argument is unknown, no launcher is there, or a process fails or hangs.
    """
    if collective not in COLLECTIVES:
        raise PretraceError(f"unknown collective {collective!r}", "--collective", f"use {' or '.join(COLLECTIVES)}")
    for dtype in dtypes:
        if dtype not in MAGNITUDES:
            raise PretraceError(f"unknown dtype {dtype!r}", "--dtype", f"use {', '.join(MAGNITUDES)}")
    if any(n < 1 for n in numels):
        raise PretraceError("a buffer needs an element", "--numel", "give sizes of at least 1")
    if spawn:
        _spawn(out, numels, dtypes, collective, backend, spawn)
    elif "RANK" not in os.environ:
        raise PretraceError("no launcher is running", "pretrace probe",
                            "start it with torchrun --no-python, or give --spawn N for local processes")  # fmt: skip
    else:
        from pretrace.step.probe_collect import run

        run(numels, dtypes, [collective], backend, str(out))


def _spawn(
    out: Path, numels: Sequence[int], dtypes: Sequence[str], collective: str, backend: str, world_size: int
) -> None:
    arguments = ["--backend", backend, "--collective", collective, "--out", str(out)]
    arguments += ["--numel", *map(str, numels), "--dtype", *dtypes]
    local = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    meeting = {"PROBE_STORE": str(out) + ".store", "WORLD_SIZE": str(world_size)}
    children = [
        subprocess.Popen(
            [sys.executable, str(_SCRIPT), *arguments],
            env=os.environ | local | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(world_size)
    ]
    try:
        said = [child.communicate(timeout=TIMEOUT_S)[1] for child in children]
    except subprocess.TimeoutExpired:
        raise PretraceError(
            f"the probe does not come back within {TIMEOUT_S} s", backend, "probe a smaller buffer"
        ) from None
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for child, words in zip(children, said, strict=True):
        if child.returncode:
            last = words.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
            raise PretraceError(f"a probing process fails: {last[0]}"[:300], backend, "see that the backend works here")


def write_order(recorded: Recorded, path: Path) -> None:
    """The recorded order as a JSON file; its content is a plan's `reduction.order`."""
    write_text(path, recorded.model_dump_json(indent=1) + "\n")
