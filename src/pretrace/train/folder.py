"""A run's folder: where everything of it lies, and one writer at a time.

RUN/recipe.yaml  recipe.sha256  environment.json  data.json  log.jsonl  tb/  checkpoints/step-00000128/
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError, naming
from pretrace.files import is_whole, sweep, write_bytes

STATE = "train_state"  # of a checkpoint: what training needs to go on
_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The complete, resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def recipe_digest(self) -> Path:
        """sha256 of the recipe's canonical form."""
        return self.path / "recipe.sha256"

    @property
    def environment(self) -> Path:
        """Versions, processor, threads, flags."""
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        """Size and fingerprint of every token file that the run reads."""
        return self.path / "data.json"

    def identity(self) -> str:
        """32 hex digits that a logging service knows this run by; made once, and taken along by a mirror."""
        path = self.path / "run_id"
        if not path.is_file():
            write_bytes(path, uuid.uuid4().hex.encode())
        return path.read_text().strip()

    @property
    def log(self) -> Path:
        """One record a step."""
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's events."""
        return self.path / "tb"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The folder of the state after `step` updates."""
        return self.checkpoints / f"step-{step:08d}"

    def whole_checkpoints(self) -> dict[int, Path]:
        """Step -> folder of every finished checkpoint, in order of steps; unfinished ones do not count."""
        return {step: path for step, path in self.finished_checkpoints().items() if is_whole(path)}

    def finished_checkpoints(self) -> dict[int, Path]:
        """The same with those that were damaged after they were written."""
        found = {}
        for path in self.checkpoints.glob("step-*") if self.checkpoints.is_dir() else ():
            if match := _STEP.fullmatch(path.name):
                found[int(match.group(1))] = path
        return dict(sorted(found.items()))

    def has_begun(self) -> bool:
        """Whether a whole checkpoint or a line of the log is there: something to go on from, or to lose."""
        return bool(self.whole_checkpoints()) or (self.log.is_file() and self.log.stat().st_size > 0)

    def refuse_nothing(self) -> None:
        """Raises where this is no run's folder; names the one above it where that is."""
        if self.recipe.exists():
            return
        above = next((path for path in (*self.path.parents,)[:2] if RunFolder(path).recipe.exists()), None)
        hint = (
            "check the path, or start a run (train RECIPE --out)"
            if above is None
            else f"name the run's folder: {above}"
        )
        raise PretraceError("the folder holds no run", str(self.path), hint)

    def create(self) -> None:
        """Makes the folder and sweeps what dead writers left.

        Raises
        ------
        PretraceError
            If it cannot be made or written.
        """
        with naming(self.path, "making the run folder"):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "not writable", str(self.path))
        sweep(self.path)
        for folder in (self.checkpoints, *self.checkpoints.glob("step-*")):
            sweep(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process; the lock goes with the process, however it ends.

        Raises
        ------
        PretraceError
            If another process holds it.
        """
        with naming(self.path / ".lock", "locking the run folder"):
            file = (self.path / ".lock").open("a+")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PretraceError("another process is training into this folder", str(self.path),
                                    "wait for it, stop it, or choose another folder") from None  # fmt: skip
            yield
