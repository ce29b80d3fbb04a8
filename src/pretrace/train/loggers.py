"""Where records go beside our own log: TensorBoard, wandb, trackio, behind one small interface.

They are shown to people; nothing reads them back. A service that fails is named once and left out; the run goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pretrace.errors import PretraceError
from pretrace.recipe.spec import Recipe
from pretrace.runlog.record import Record
from pretrace.train.folder import RunFolder

_SCALARS = (
    "loss", "z_loss", "lr", "grad_norm", "clip_coefficient", "param_norm", "update_norm", "logit_mean", "logit_rms", "logit_max",
    "logit_lse", "loss_scale", "tokens_per_s", "mfu", "memory_bytes", "elapsed_s",
)  # fmt: skip


class Logger(Protocol):
    """Takes every record once, in order."""

    def log(self, record: Record) -> None:
        """Takes one record."""

    def close(self) -> None:
        """Sends what is left."""


def scalars(record: Record) -> dict[str, float]:
    """What a record plots: every measured number under its name, numeric notes under theirs."""
    found = {name: getattr(record, name) for name in _SCALARS}
    found |= {name: value for name, value in record.notes.items() if isinstance(value, (int, float))}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


class TensorBoard:
    """Events in RUN/tb; a resumed run hides what an earlier process wrote of later steps."""

    def __init__(self, folder: RunFolder, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter  # its constructor carries no types
        self._writer = writer(str(folder.tensorboard), purge_step=after_step + 1 if after_step else None)

    def log(self, record: Record) -> None:
        """One scalar a figure."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.step)

    def close(self) -> None:
        """Flushes the events."""
        self._writer.close()


class Service:
    """wandb or trackio: the same three calls."""

    def __init__(self, module: Any, project: str, config: dict[str, Any], **names: str) -> None:
        self._run = module.init(project=project, config=config, resume="allow", **names)
        self._module = module

    def log(self, record: Record) -> None:
        """One row a step."""
        self._run.log(scalars(record), step=record.step)

    def close(self) -> None:
        """Ends the service's run."""
        self._module.finish()


def open_loggers(names: Sequence[str], folder: RunFolder, recipe: Recipe, after_step: int) -> list[Logger]:
    """The loggers called `tensorboard`, `wandb:PROJECT`, `trackio:PROJECT`.

    Raises
    ------
    PretraceError
        If a name is unknown or its package is not installed.
    """
    check_loggers(names)
    return [_open(name, folder, recipe, after_step) for name in names]


def check_loggers(names: Sequence[str]) -> None:
    """Raises what `open_loggers` raises, before anything is opened or written."""
    for name in names:
        kind = name.partition(":")[0]
        if kind not in ("tensorboard", "wandb", "trackio"):
            raise PretraceError(
                f"unknown logger {name!r}", "--log-to", "use one of: tensorboard, wandb:PROJECT, trackio:PROJECT"
            )
        if not _installed(kind):
            raise PretraceError(f"{kind} is not installed", "--log-to", f"pip install pretrace[{kind}]")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a specification: somebody put it there by hand
        return True


def _open(name: str, folder: RunFolder, recipe: Recipe, after_step: int) -> Logger:
    kind, _, project = name.partition(":")
    if kind == "tensorboard":
        return TensorBoard(folder, after_step)
    module = importlib.import_module(kind)
    # A resumed run goes on in its curve, and another run of the same recipe has one of its own: trackio knows runs by name.
    known = folder.identity()
    ours = {"name": recipe.name, "id": known, "dir": str(folder.path)}
    names = ours if kind == "wandb" else {"name": f"{recipe.name}-{known[:8]}"}
    return Service(module, project or "pretrace", recipe.values(), **names)


class Guarded:
    """Hands records to loggers; one that raises is left out from then on, and said once."""

    def __init__(self, loggers: Sequence[Logger], tell: Callable[[str], None]) -> None:
        self._loggers, self._tell = list(loggers), tell

    def log(self, record: Record) -> None:
        """Hands a record to every logger that still works."""
        for logger in list(self._loggers):
            try:
                logger.log(record)
            except Exception as error:  # a service may fail in any way; training does not depend on it
                self._loggers.remove(logger)
                self._tell(f"{type(logger).__name__} failed and is left out: {error}")

    def close(self) -> None:
        """Closes the loggers that still work."""
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:
                self._tell(f"{type(logger).__name__} failed at its end: {error}")
