"""What is written of every update: our own log always, with its alarms; other loggers beside it. By the first process only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from pretrace.recipe.spec import Recipe
from pretrace.runlog.alarms import Watch
from pretrace.runlog.read import records
from pretrace.runlog.record import Record
from pretrace.runlog.write import LogWriter
from pretrace.train.folder import RunFolder
from pretrace.train.held_out import reached
from pretrace.train.loggers import Guarded, open_loggers
from pretrace.train.team import Team


class Journal:
    """The open log of a run; a context manager.

    Parameters
    ----------
    step : updates done; lines of later steps, written by a process that died, are cut.
    first : the step that the run started from.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        loggers: Sequence[str],
        tell: Callable[[str], None],
        team: Team,
        step: int,
        first: int,
    ) -> None:
        self._writer: LogWriter | None = None
        self._shown = Guarded((), tell)
        self._alarms = Watch()
        self.reached = team.first(lambda: self._open(folder, recipe, loggers, tell, step, first))

    def _open(
        self,
        folder: RunFolder,
        recipe: Recipe,
        loggers: Sequence[str],
        tell: Callable[[str], None],
        step: int,
        first: int,
    ) -> bool:
        """Opens everything; whether the run has come to its target already."""
        if step == first:
            folder.log.unlink(missing_ok=True)  # lines of a process that died before its first checkpoint
        self._writer = LogWriter(folder.log, after_step=step)
        before = records(folder.log)
        self._alarms = Watch(history=before)
        self._shown = Guarded(open_loggers(loggers, folder, recipe, step), tell)
        return bool(before) and reached(recipe, before[-1].notes)

    def write(self, record: Record) -> Record:
        """Writes a record; returns it with its alarms."""
        if self._writer is None:
            return record
        record = self._alarms(record)
        self._writer.write(record)
        self._shown.log(record)
        return record

    def sync(self) -> None:
        """Flushes the log to the disk."""
        if self._writer is not None:
            self._writer.sync()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        self._shown.close()
