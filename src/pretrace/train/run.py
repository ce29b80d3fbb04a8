"""A run on disk: begin or go on, update, log, save; stop when asked, with everything saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError
from pretrace.files import write_json, write_text
from pretrace.recipe.read import load, to_yaml
from pretrace.recipe.spec import Recipe
from pretrace.runlog.record import Record
from pretrace.runlog.write import LogWriter
from pretrace.train.environment import describe
from pretrace.train.folder import RunFolder
from pretrace.train.save import newest_with_state, restore, save
from pretrace.train.update import Training, advance, begin


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has come to."""

    steps: int  # updates done
    loss: float | None  # of the last update of this call; None if none was made
    checkpoints: dict[int, str]  # step -> folder
    digest: str  # of the recipe
    stopped: bool = False  # left on request before its end, with everything saved


@dataclass(slots=True)
class StopRequest:
    """Set by SIGTERM or SIGINT; the run saves after the update at hand and leaves."""

    asked: bool = field(default=False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first request is noted, a second interrupt breaks off at once."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    start: StateView | None = None,
    tokenizer: Path | None = None,
    watch: Callable[[Record], None] | None = None,
) -> RunResult:
    """Trains `recipe` into the folder `out`, which must not hold a run yet.

    Raises
    ------
    PretraceError
        If the folder holds a run, cannot be written, or the recipe cannot be trained.
    """
    folder = RunFolder(Path(out))
    if folder.recipe.exists():
        raise PretraceError(
            "the folder holds a run already", str(out), f"go on with it (train --resume {out}), or choose another"
        )
    folder.create()
    with folder.locked():
        write_text(folder.recipe, to_yaml(recipe))
        write_text(folder.recipe_digest, recipe.digest() + "\n")
        training = begin(recipe, start=start)
        if recipe.checkpoints.due(0, recipe.steps):
            save(training, folder, tokenizer)
        return _go_on(training, folder, tokenizer, watch)


def resume(out: str | Path, *, watch: Callable[[Record], None] | None = None) -> RunResult:
    """Goes on with the run in `out` from its newest whole checkpoint, to the bits of a run that never stopped.

    Raises
    ------
    PretraceError
        If there is no run, its recipe was changed, or nothing to go on from.
    """
    folder = RunFolder(Path(out))
    recipe = load(folder.recipe)
    _unchanged(recipe, folder)
    folder.create()
    with folder.locked():
        training = begin(recipe)
        checkpoint = newest_with_state(folder)
        if checkpoint is not None:
            restore(training, checkpoint)
        elif recipe.checkpoints.due(0, recipe.steps):
            save(training, folder)
        tokenizer = checkpoint / "tokenizer.json" if checkpoint is not None else None
        return _go_on(training, folder, tokenizer if tokenizer and tokenizer.is_file() else None, watch)


def _unchanged(recipe: Recipe, folder: RunFolder) -> None:
    kept = folder.recipe_digest.read_text().strip() if folder.recipe_digest.is_file() else ""
    if kept != recipe.digest():
        raise PretraceError(
            f"the recipe has digest {recipe.digest()[:12]}, the run was started with {kept[:12] or 'none'}",
            str(folder.recipe),
            "restore recipe.yaml, or start a new run from this run's last checkpoint",
        )


def _go_on(
    training: Training, folder: RunFolder, tokenizer: Path | None, watch: Callable[[Record], None] | None
) -> RunResult:
    recipe = training.recipe
    write_json(folder.environment, describe())
    saved = training.step if folder.checkpoint(training.step).is_dir() else -1
    loss = None
    with LogWriter(folder.log, after_step=training.step) as log, _stop_on_signals() as stop:
        while training.step < recipe.steps and not stop.asked:
            record = advance(training)
            loss = record.loss
            log.write(record)
            if watch is not None:
                watch(record)
            if recipe.checkpoints.due(training.step, recipe.steps):
                log.sync()
                save(training, folder, tokenizer)
                saved = training.step
        if saved != training.step:
            log.sync()
            save(training, folder, tokenizer)
    checkpoints = {step: str(path) for step, path in folder.whole_checkpoints().items()}
    return RunResult(training.step, loss, checkpoints, recipe.digest(), stopped=training.step < recipe.steps)


@contextmanager
def _stop_on_signals() -> Iterator[StopRequest]:
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
