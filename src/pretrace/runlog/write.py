"""Appends records to `log.jsonl` so that a kill at any instant costs at most the line that was being written.

Each line goes out in one `write` on a descriptor opened for appending, the newline last. A half line that a dead writer left
is cut when the file is opened again; a resumed run also cuts the lines of steps that it will do again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

from pretrace.errors import PretraceError, from_os_error
from pretrace.runlog.read import intact_bytes
from pretrace.runlog.record import Record

SYNC_EVERY_S = 5.0  # power loss may cost this many seconds of lines; a kill costs none


class LogWriter:
    """An open log. Use it as a context manager.

    Parameters
    ----------
    path : the log; made if absent, continued if present.
    after_step : when given, lines of later steps are cut first (the run resumes from a checkpoint of that step).

    Raises
    ------
    PretraceError
        If the file cannot be written, or holds whole lines that are no records.
    """

    def __init__(self, path: str | Path, *, after_step: int | None = None) -> None:
        self.path = Path(path)
        try:
            if self.path.exists():
                os.truncate(self.path, intact_bytes(self.path, after_step))
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(error, self.path, doing="opening the log") from error
        self._synced = time.monotonic()

    def write(self, record: Record) -> None:
        """Appends one line."""
        data = (record.line() + "\n").encode()
        try:
            written = os.write(self._fd, data)
            if written != len(data):  # the disk is full: take the half line back, so that the file stays whole
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise PretraceError("the log does not fit: the disk is full", str(self.path),
                                    "free some room, then resume the run")  # fmt: skip
            if time.monotonic() - self._synced > SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            raise from_os_error(error, self.path, doing="writing the log") from error

    def sync(self) -> None:
        """Flushes what was written to the disk."""
        os.fsync(self._fd)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Flushes and closes."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
