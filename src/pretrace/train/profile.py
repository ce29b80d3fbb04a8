"""A trace of some updates by torch's profiler, after the first ones, which are slower than the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

SKIPPED = 3  # updates: allocation, compilation, first-touch of the data


class Steps(Protocol):
    """Is told of every update."""

    def step(self) -> None:
        """An update is over."""


class _Nothing:
    def step(self) -> None:
        """Nothing is traced."""


@contextmanager
def profiled(folder: Path, n_steps: int) -> Iterator[Steps]:
    """Traces `n_steps` updates after the first three into `folder`: trace.json (chrome://tracing) and summary.txt."""
    if not n_steps:
        yield _Nothing()
        return
    import torch

    def keep(profiler: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=40)
        (folder / "summary.txt").write_text(table + "\n")

    plan = torch.profiler.schedule(wait=SKIPPED - 1, warmup=1, active=n_steps, repeat=1)
    with torch.profiler.profile(schedule=plan, on_trace_ready=keep) as profiler:
        yield profiler
