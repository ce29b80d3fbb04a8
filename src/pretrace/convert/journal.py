"""Which units of a plan are written and on the disk: what a second start of the same plan need not do again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from pretrace.convert.units import Unit

FLUSH_BYTES = 64 << 20  # of finished units: they go to the disk while the next ones are made
JOURNAL = "pretrace-journal.jsonl"
Files = Callable[[Sequence[Unit]], Iterable[Path]]  # those that hold units


class Journal:
    """The units that are done, one JSON line each, under the digest of the plan that they belong to."""

    def __init__(self, folder: Path, plan: str, host: int = 0) -> None:
        self._path = folder / (JOURNAL if not host else f"{host}-{JOURNAL}")
        self.plan = plan
        self.done: set[str] = set()
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        if lines and lines[0] == json.dumps({"plan": plan}):
            self.done = {unit for line in lines[1:] if (unit := _unit_in(line))}
        else:
            self._path.write_text(json.dumps({"plan": plan}) + "\n")

    def note(self, units: Sequence[Unit], files: Iterable[Path] = ()) -> None:
        """Brings the files to the disk, then says that the units are done."""
        for file in files:
            to_disk(file)
        with open(self._path, "a") as out:
            out.writelines(json.dumps({"unit": unit.key}) + "\n" for unit in units)
            out.flush()
            os.fdatasync(out.fileno())
        self.done.update(unit.key for unit in units)

    def remove(self) -> None:
        """Away with it: the target is complete."""
        self._path.unlink(missing_ok=True)


def is_journal_of(folder: Path, plan: str) -> bool:
    """Whether an earlier start of the same plan worked in the folder."""
    try:
        with open(folder / JOURNAL) as file:
            return file.readline().rstrip("\n") == json.dumps({"plan": plan})
    except OSError:
        return False


def _unit_in(line: str) -> str:
    """The unit of a line; '' for a line that a kill cut short."""
    try:
        return str(json.loads(line)["unit"])
    except (ValueError, KeyError, TypeError):
        return ""


class Noting:
    """Brings finished units to the disk and notes them, by a thread of its own while the next ones are made."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._disk = ThreadPoolExecutor(1)
        self._waiting: list[Unit] = []
        self._started: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.shutdown()

    def wrote(self, unit: Unit, files: Files) -> None:
        """A unit is written; every `FLUSH_BYTES` those that are go to the disk."""
        self._waiting.append(unit)
        if sum(one.size_bytes for one in self._waiting) >= FLUSH_BYTES:
            self._started.append(self._disk.submit(self._journal.note, self._waiting, files(self._waiting)))
            self._waiting = []

    def rest(self, files: Files) -> None:
        """Returns when all units are noted.

        Raises
        ------
        OSError
            If a file could not be brought to the disk.
        """
        for one in self._started:
            one.result()
        self._journal.note(self._waiting, files(self._waiting))


def to_disk(path: Path) -> None:
    """Returns when the file's bytes are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
