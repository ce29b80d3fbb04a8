"""Checkpoints of a run: weights that transformers loads as they are, and the state that training needs to go on.

step-00000128/
  model.safetensors  config.json  tokenizer.json   weights in the published dtype
  train_state/tensors.safetensors                   parameters and moments in full precision; of a sharded run
  train_state/shards/                               the same in torch's distributed format, each process its parts
  train_state/position.json                         counters, loss scale, the recipe and its digest
  manifest.json                                     written last; a folder without it does not count
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from pretrace.checkpoint.write_hf import write_hf, write_safetensors
from pretrace.errors import PretraceError, naming
from pretrace.files import add_sha256, atomic_folder, forget, verify_manifest, write_json
from pretrace.recipe.spec import CheckpointSpec
from pretrace.train.capture import Capture, capture, capture_weights
from pretrace.train.engage import is_sharded
from pretrace.train.folder import STATE, RunFolder
from pretrace.train.shards import FOLDER as SHARDS
from pretrace.train.shards import write_shards
from pretrace.train.team import ALONE, Team
from pretrace.train.update import Training


def save(training: Training, run: RunFolder, tokenizer: Path | None = None) -> Path:
    """Writes the checkpoint of the current step, verifies it by reading it back, then drops old training states.

    Of several processes the first one writes, and in a sharded run each its shards; all return, or all raise.

    Raises
    ------
    PretraceError
        If it cannot be written (then earlier checkpoints are as they were), or reads back differently.
    """
    if is_sharded(training):
        return _save_sharded(training, run, tokenizer)
    taken = capture(training, copy=False)
    training.team.first(lambda: write(taken, run, tokenizer))
    return run.checkpoint(training.step)


def write(taken: Capture, run: RunFolder, tokenizer: Path | None = None) -> Path:
    """As `save`, of a state that was taken before."""
    target = run.checkpoint(taken.step)
    with atomic_folder(target, replace=True, step=taken.step, recipe=taken.recipe.digest()) as folder:
        _write_weights(taken, folder, tokenizer)
        write_safetensors(folder / STATE / "tensors.safetensors", taken.state(), {"format": "pt"})
    return _finished(target, run, taken.recipe.checkpoints)


def _save_sharded(training: Training, run: RunFolder, tokenizer: Path | None) -> Path:
    team, target = training.team, run.checkpoint(training.step)
    with ExitStack() as stack:
        about = {"step": training.step, "recipe": training.recipe.digest()}
        folder = team.first(lambda: stack.enter_context(atomic_folder(target, replace=True, **about)))
        taken = capture_weights(training)
        team.first(lambda: _write_weights(taken, folder, tokenizer))
        team.together(lambda: write_shards(training, folder / STATE / SHARDS))
        team.first(stack.close)
    team.first(lambda: _finished(target, run, training.recipe.checkpoints))
    return target


def _write_weights(taken: Capture, folder: Path, tokenizer: Path | None) -> None:
    write_hf(folder, taken.weights(taken.recipe.checkpoints.dtype), taken.recipe.model)
    if tokenizer is not None:
        with naming(tokenizer, "copying the tokenizer"):
            shutil.copyfile(tokenizer, folder / "tokenizer.json")
    (folder / STATE).mkdir()
    write_json(folder / STATE / "position.json", taken.position)


def _finished(target: Path, run: RunFolder, spec: CheckpointSpec) -> Path:
    verify_manifest(target)
    if spec.asynchronous:  # training does not wait for it
        add_sha256(target)
    drop_old_states(run, spec)
    return target


def drop_old_states(run: RunFolder, spec: CheckpointSpec) -> None:
    """Removes the training state of all but the newest `keep_states` checkpoints; their weights stay."""
    with_state = [path for path in run.whole_checkpoints().values() if (path / STATE).is_dir()]
    for path in with_state[: -spec.keep_states]:
        forget(path, STATE)


class Saver:
    """Saves as the recipe declares: at once or in the background; a full disk stops the run or costs one checkpoint.

    Use as a context manager: leaving it waits for what is being written.
    """

    def __init__(
        self,
        run: RunFolder,
        spec: CheckpointSpec,
        tokenizer: Path | None,
        on_saved: Callable[[Path], None] | None = None,
        team: Team = ALONE,
    ) -> None:
        self.run, self.spec, self.tokenizer, self._on_saved = run, spec, tokenizer, on_saved
        self.team = team
        self.saved = -1  # step of the newest checkpoint that is whole, or being written
        self.incident = ""  # what the last checkpoint that failed on a full disk said; taken by the next record
        self._thread = ThreadPoolExecutor(1) if spec.asynchronous else None
        self._writing: Future[Path] | None = None

    def save(self, training: Training) -> None:
        """Saves the current step; in the background if declared, after the one before is written.

        Raises
        ------
        PretraceError
            If this checkpoint, or the one written in the background before, failed and the run is to stop then.
        """
        self.wait()
        self.saved = training.step
        if self._thread is None or is_sharded(training):
            self._finish(lambda: save(training, self.run, self.tokenizer))
            return
        taken = capture(training, copy=True)
        if self.team.leads:
            self._writing = self._thread.submit(write, taken, self.run, self.tokenizer)

    def wait(self) -> None:
        """Returns when nothing is being written; raises what `save` raises."""
        writing, self._writing = self._writing, None
        if self._thread is not None and self.saved >= 0:
            self._finish(lambda: self.team.first(lambda: writing.result() if writing is not None else None))

    def take_incident(self) -> str:
        """The last incident, once."""
        said, self.incident = self.incident, ""
        return said

    def _finish(self, done: Callable[[], Path | None]) -> None:
        try:
            path = done()
            if self._on_saved is not None and path is not None and self.team.leads:
                self._on_saved(path)
        except PretraceError as error:
            self.saved = -1
            if not disk_is_full(error) or self.spec.when_full == "stop":
                raise _with_last(error, self.run) from error
            self.incident = error.what

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk or a used-up quota is at the bottom of `error`."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def _with_last(error: PretraceError, run: RunFolder) -> PretraceError:
    whole = list(run.whole_checkpoints().values())
    last = f"the last whole checkpoint is {whole[-1].name}" if whole else "there is no whole checkpoint yet"
    mend = error.mend
    if disk_is_full(error) and run.has_begun():
        mend = f"free some room, then go on with it (train --resume {run.path})"
    return PretraceError(f"{error.what}; {last}", error.where, mend, exit_code=error.exit_code)
