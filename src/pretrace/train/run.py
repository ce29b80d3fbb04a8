"""A run on disk: begin or go on, update, evaluate, log, save; stop when asked, with everything saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pretrace.batch import Batch
from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError
from pretrace.files import write_json
from pretrace.recipe.spec import Recipe
from pretrace.runlog.alarms import Watch
from pretrace.runlog.read import records
from pretrace.runlog.record import Record
from pretrace.runlog.write import LogWriter
from pretrace.train.changes import keep_recipe, settled
from pretrace.train.environment import describe
from pretrace.train.folder import RunFolder
from pretrace.train.gauge import Gauge, flops_per_token, peak_flops
from pretrace.train.held_out import held_out_batches, measure, noted, reached
from pretrace.train.loggers import Guarded, open_loggers
from pretrace.train.restore import newest_with_state, restore
from pretrace.train.save import Saver
from pretrace.train.stop import stop_on_signals
from pretrace.train.update import Training, advance, begin


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has come to."""

    steps: int  # updates done
    loss: float | None  # of the last update of this call; None if none was made
    checkpoints: dict[int, str]  # step -> folder
    digest: str  # of the recipe
    stopped: bool = False  # left on request before its end, with everything saved
    reached: bool = False  # the held-out loss came to its target before the last step


@dataclass(frozen=True, slots=True)
class Company:
    """Who else hears of a run; none of it moves a number."""

    watch: Callable[[Record], None] | None = None  # every record as it comes
    tell: Callable[[str], None] = lambda said: None  # incidents, in words
    loggers: Sequence[str] = ()  # tensorboard, wandb:PROJECT, trackio:PROJECT
    tokenizer: Path | None = None  # copied into every checkpoint
    saved: Callable[[Path], None] | None = None  # every checkpoint that is whole


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    start: StateView | None = None,
    tokenizer: Path | None = None,
    watch: Callable[[Record], None] | None = None,
    company: Company | None = None,
) -> RunResult:
    """Trains `recipe` into the folder `out`, which must not hold a run yet.

    Parameters
    ----------
    start : canonical tensors that stand for step 0; the first checkpoint keeps them (or declare `recipe.start`).
    tokenizer, watch : short for the same fields of `company`.

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
    company = _company(company, watch, tokenizer)
    with folder.locked():
        training = begin(recipe, start=start)
        if start is None:
            keep_recipe(folder, recipe)
        with Saver(folder, recipe.checkpoints, company.tokenizer, company.saved) as saver:
            # A start that only this process knows of must be on disk before the folder counts as a run.
            if start is not None or recipe.checkpoints.due(training.step, recipe.steps):
                saver.save(training)
            if start is not None:
                saver.wait()
                keep_recipe(folder, recipe)
            return _go_on(training, folder, saver, company)


def resume(
    out: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    watch: Callable[[Record], None] | None = None,
    company: Company | None = None,
) -> RunResult:
    """Goes on with the run in `out` from its newest whole checkpoint, to the bits of a run that never stopped.

    Parameters
    ----------
    changes : dotted keys of the recipe that are other values from now on; recorded in `changes.json`.
    allow : dotted keys whose change in the run's recipe.yaml is meant.

    Raises
    ------
    PretraceError
        If there is no run, its recipe was changed without a word, or there is nothing to go on from.
    """
    folder = RunFolder(Path(out))
    folder.create()
    with folder.locked():
        recipe = settled(folder, changes or {}, allow)
        checkpoint = newest_with_state(folder)
        training = begin(recipe, burn_in=checkpoint is None)
        if checkpoint is not None:
            restore(training, checkpoint)
        kept = checkpoint / "tokenizer.json" if checkpoint is not None else None
        company = _company(company, watch, kept if kept is not None and kept.is_file() else None)
        with Saver(folder, recipe.checkpoints, company.tokenizer, company.saved) as saver:
            if checkpoint is not None:
                saver.saved = training.step
            elif recipe.checkpoints.due(training.step, recipe.steps):
                saver.save(training)
            return _go_on(training, folder, saver, company)


def _company(given: Company | None, watch: Callable[[Record], None] | None, tokenizer: Path | None) -> Company:
    company = given or Company()
    return replace(company, watch=company.watch or watch, tokenizer=company.tokenizer or tokenizer)


def _go_on(training: Training, folder: RunFolder, saver: Saver, company: Company) -> RunResult:
    recipe = training.recipe
    write_json(folder.environment, describe())
    training.gauge = _gauge(training)
    held_out = held_out_batches(recipe.evaluation) if recipe.evaluation is not None else ()
    loss, done = None, False
    if training.step == (recipe.start.step if recipe.start is not None else 0):
        folder.log.unlink(missing_ok=True)  # lines of a process that died before its first checkpoint
    with LogWriter(folder.log, after_step=training.step) as log, stop_on_signals() as stop:
        before = records(folder.log)
        done = bool(before) and reached(recipe, before[-1].notes)
        alarms = Watch(history=before)
        shown = Guarded(open_loggers(company.loggers, folder, recipe, training.step), company.tell)
        try:
            while training.step < recipe.steps and not done and not stop.asked:
                record = alarms(_update(training, held_out, saver))
                done, loss = reached(recipe, record.notes), record.loss
                log.write(record)
                shown.log(record)
                if company.watch is not None:
                    company.watch(record)
                if recipe.checkpoints.due(training.step, recipe.steps) or done:
                    log.sync()
                    saver.save(training)
            if saver.saved != training.step:
                log.sync()
                saver.save(training)
            saver.wait()
            if saver.saved != training.step:
                raise PretraceError(f"the last state was not saved: {saver.take_incident()}", str(folder.checkpoints),
                                    "free some room, then resume the run")  # fmt: skip
        finally:
            shown.close()
    checkpoints = {step: str(path) for step, path in folder.whole_checkpoints().items()}
    stopped = training.step < recipe.steps and not done
    return RunResult(training.step, loss, checkpoints, recipe.digest(), stopped=stopped, reached=done)


def _update(training: Training, held_out: tuple[Batch, ...], saver: Saver) -> Record:
    record = advance(training)
    evaluation = training.recipe.evaluation
    if evaluation is not None and evaluation.due(training.step, training.recipe.steps):
        record = noted(record, measure(training, held_out))
    if said := saver.take_incident():
        record = replace(record, notes={**record.notes, "incident": said})
    return record


def _gauge(training: Training) -> Gauge:
    recipe, state = training.recipe, training.state
    dtype = getattr(torch, recipe.step.kernels.compute_dtype)
    peak = peak_flops(state.device, dtype, torch.get_num_threads())
    return Gauge(flops_per_token(recipe.model, recipe.data.seq_len), peak)
