"""Reads `log.jsonl`: records in order, a half last line left out, lines of a step written again replaced by the later one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pretrace.errors import PretraceError, naming
from pretrace.runlog.record import Record, parse


def records(path: str | Path) -> list[Record]:
    """Every step of a log once, in step order.

    The last line may be half (the writer was killed): it is left out. Where a step stands twice (a run resumed from an earlier
    checkpoint without cutting its log), the later line is the one that the run went on with.

    Raises
    ------
    PretraceError
        If the file cannot be read, or a line other than the last is not a record.
    """
    steps = {record.step: record for _, record in lines(path)}
    return [steps[step] for step in sorted(steps)]


def lines(path: str | Path) -> Iterator[tuple[int, Record]]:
    """Whole lines in file order, each with the byte offset of its end."""
    end = 0
    with naming(path, "reading the log"), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            if line.strip():
                yield end, parse(line, f"{path}, line {number}")


def intact_bytes(path: str | Path, after_step: int | None = None) -> int:
    """Bytes of the whole lines at the start of the log; with `after_step`, up to the last line of that step.

    Raises
    ------
    PretraceError
        If `after_step` is given and the log ends before it.
    """
    end, last = 0, 0
    for offset, record in lines(path):
        if after_step is not None and record.step > after_step:
            break
        end, last = offset, record.step
    if after_step is not None and last < after_step:
        raise PretraceError(f"the log ends at step {last}, the run goes on from step {after_step}", str(path),
                            "restore the log, or move it away: the run then goes on with a new one")  # fmt: skip
    return end
