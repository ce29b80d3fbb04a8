"""A run on disk: begin or go on, update, evaluate, log, save; stop when asked, with everything saved.

Of several processes (`Team`) the first one writes log and checkpoints; all of them make every update and every decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pretrace.batch import Batch
from pretrace.checkpoint.view import StateView
from pretrace.errors import PretraceError
from pretrace.files import write_json
from pretrace.recipe.spec import Recipe
from pretrace.runlog.read import records
from pretrace.runlog.record import Record
from pretrace.train.bonds import changed_data, changed_machine, in_words, keep_seals, seals
from pretrace.train.changes import Settled, keep_recipe, settled
from pretrace.train.engage import EngineName, engage
from pretrace.train.environment import describe
from pretrace.train.folder import RunFolder
from pretrace.train.gauge import Gauge, flops_per_token, peak_flops
from pretrace.train.held_out import LOSS, held_out_batches, measure, noted, reached
from pretrace.train.journal import Journal
from pretrace.train.loggers import check_loggers
from pretrace.train.memory import keep_freed_memory
from pretrace.train.profile import profiled
from pretrace.train.restore import newest_sound, restore
from pretrace.train.save import Saver
from pretrace.train.stop import StopRequest, stop_on_signals
from pretrace.train.team import ALONE, Team
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
    held_out_loss: float | None = None  # of the state after the last step, where it was measured


@dataclass(frozen=True, slots=True)
class Company:
    """Who trains and who hears of it; none of it is part of the recipe."""

    watch: Callable[[Record], None] | None = None  # every record as it comes
    tell: Callable[[str], None] = lambda said: None  # incidents, in words
    loggers: Sequence[str] = ()  # tensorboard, wandb:PROJECT, trackio:PROJECT
    tokenizer: Path | None = None  # copied into every checkpoint
    saved: Callable[[Path], None] | None = None  # every checkpoint that is whole
    profile_steps: int = 0  # so many updates are traced into RUN/profile
    team: Team = ALONE
    engine: EngineName = "plan"  # who makes the updates where every rank is a process


def run(
    recipe: Recipe,
    out: str | Path,
    *,
    start: StateView | None = None,
    tokenizer: Path | None = None,
    watch: Callable[[Record], None] | None = None,
    company: Company | None = None,
) -> RunResult:
    """Trains `recipe` into the folder `out`, which must not hold a run yet; one of this recipe that never began is none.

    Parameters
    ----------
    start : canonical tensors that stand for step 0; the first checkpoint keeps them (or declare `recipe.start`).
    tokenizer, watch : short for the same fields of `company`.

    Raises
    ------
    PretraceError
        If the folder holds a run, cannot be written, or the recipe cannot be trained.
    """
    company = _company(company, watch, tokenizer)
    team, folder = company.team, RunFolder(Path(out))
    check_loggers(company.loggers)
    team.first(lambda: _refuse_a_run(folder))
    with _held(folder, team):
        training = begin(recipe, start=start, device=team.device)
        engage(training, team, company.engine)
        team.first(lambda: keep_seals(folder, seals(recipe)))
        team.first(folder.identity)
        if start is None:
            team.first(lambda: keep_recipe(folder, recipe))
        with Saver(folder, recipe.checkpoints, company.tokenizer, company.saved, team) as saver:
            if start is not None or recipe.checkpoints.due(training.step, recipe.steps):
                saver.save(training)
            if start is not None:
                # A start that only this call knows of must be on disk before the folder counts as a run.
                saver.wait()
                team.first(lambda: keep_recipe(folder, recipe))
            return _go_on(training, folder, saver, company)


def resume(
    out: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    watch: Callable[[Record], None] | None = None,
    company: Company | None = None,
) -> RunResult:
    """Goes on with the run in `out` from its newest sound checkpoint, to the bits of a run that never stopped.

    Parameters
    ----------
    changes : dotted keys of the recipe that are other values from now on; recorded in `changes.json`.
    allow : dotted keys whose change in the run's recipe.yaml is meant.

    Raises
    ------
    PretraceError
        If there is no run, its recipe was changed without a word, or there is nothing to go on from.
    """
    company = _company(company, watch, None)
    team, folder, tell = company.team, RunFolder(Path(out)), company.tell
    check_loggers(company.loggers)
    team.first(folder.refuse_nothing)
    with _held(folder, team):
        checkpoint = team.first(lambda: newest_sound(folder, tell))
        found = team.first(lambda: settled(folder, checkpoint, changes or {}, allow))
        recipe = found.recipe
        if checkpoint is None:
            team.first(lambda: _refuse_lost_checkpoints(folder, recipe))
        training = begin(recipe, restored=checkpoint is not None, device=team.device)
        if checkpoint is not None:
            team.together(lambda: restore(training, checkpoint))
            company = _company(company, None, _kept_tokenizer(checkpoint))
        _refuse_fewer(training)
        engage(training, team, company.engine)
        team.first(lambda: _keep(folder, found, training.step, {*(changes or {}), *allow}, tell))
        with Saver(folder, recipe.checkpoints, company.tokenizer, company.saved, team) as saver:
            if checkpoint is not None:
                saver.saved = training.step
            elif recipe.checkpoints.due(training.step, recipe.steps):
                saver.save(training)
            return _go_on(training, folder, saver, company)


def _company(given: Company | None, watch: Callable[[Record], None] | None, tokenizer: Path | None) -> Company:
    company = given or Company()
    return replace(company, watch=company.watch or watch, tokenizer=company.tokenizer or tokenizer)


def _refuse_a_run(folder: RunFolder) -> None:
    # A full disk, a kill or a wrong argument may leave the recipe and nothing else: then nothing is lost by beginning again.
    if folder.recipe.exists() and folder.has_begun():
        raise PretraceError(
            "the folder holds a run already",
            str(folder.path),
            f"go on with it (train --resume {folder.path}), or choose another",
        )


def _refuse_fewer(training: Training) -> None:
    if training.step > training.recipe.steps:
        raise PretraceError(
            f"the run has {training.step:,} updates already, steps says {training.recipe.steps:,}",
            "steps", "set a larger number; an earlier state of the run stands in its checkpoints",
        )  # fmt: skip


def _keep(folder: RunFolder, found: Settled, step: int, named: Collection[str], tell: Callable[[str], None]) -> None:
    """Records what is otherwise than before this resume, in the recipe, the data's files and the machine; then goes by it."""
    now = seals(found.recipe)
    machine = changed_machine(folder, found.recipe)
    if machine:
        tell(f"this machine is not the one that step {step:,} was made on, bits may differ: {in_words(machine)}")
    found.also(folder, step, changed_data(folder, now, found.changes, named) + machine).keep(folder)
    keep_seals(folder, now)
    folder.identity()


def _refuse_lost_checkpoints(folder: RunFolder, recipe: Recipe) -> None:
    """Without a checkpoint a run begins anew, and its log with it; not where the log shows that there must have been one."""
    spec, first = recipe.checkpoints, recipe.start.step if recipe.start is not None else 0
    logged = max((record.step for record in records(folder.log)), default=0) if folder.log.is_file() else 0
    due = [step for step in range(first, logged) if spec.due(step, recipe.steps)]
    in_flight = 1 if spec.asynchronous else 0  # the newest may have been in the background still
    if spec.when_full == "stop" and len(due) > in_flight:
        raise PretraceError(
            f"the log has {logged:,} steps and there is no checkpoint, though one was due at step {due[0]:,}",
            str(folder.checkpoints), "restore the checkpoints, or start anew in another folder (train RECIPE --out)",
        )  # fmt: skip


def _kept_tokenizer(checkpoint: Path) -> Path | None:
    path = checkpoint / "tokenizer.json"
    return path if path.is_file() else None


@contextmanager
def _held(folder: RunFolder, team: Team) -> Iterator[None]:
    """The folder, made and held by the first process, and seen by all."""
    team.prove_shared(folder.path)
    with ExitStack() as stack:

        def hold() -> None:
            folder.create()
            stack.enter_context(folder.locked())

        team.first(hold)
        yield


def _go_on(training: Training, folder: RunFolder, saver: Saver, company: Company) -> RunResult:
    recipe, team = training.recipe, training.team
    keep_freed_memory()
    team.first(lambda: write_json(folder.environment, describe()))
    training.gauge = _gauge(training)
    held_out = held_out_batches(recipe.evaluation, recipe.model.vocab_size) if recipe.evaluation is not None else ()
    loss, held, first = None, None, recipe.start.step if recipe.start is not None else 0
    with (
        Journal(folder, recipe, company.loggers, company.tell, team, training.step, first) as journal,
        profiled(folder.path / "profile", company.profile_steps if team.leads else 0) as profiler,
        stop_on_signals() as stop,
    ):
        done = journal.reached
        while training.step < recipe.steps and not done and not _asked(stop, team):
            record = journal.write(_update(training, held_out, saver))
            done, loss, held = reached(recipe, record.notes), record.loss, record.notes.get(LOSS)
            profiler.step()
            if company.watch is not None and team.leads:
                company.watch(record)
            if recipe.checkpoints.due(training.step, recipe.steps) or done:
                journal.sync()
                saver.save(training)
        if saver.saved != training.step:
            journal.sync()
            saver.save(training)
        saver.wait()
        if saver.saved != training.step:
            raise PretraceError(f"the last state was not saved: {saver.take_incident()}", str(folder.checkpoints),
                                "free some room, then resume the run")  # fmt: skip
    checkpoints = {step: str(path) for step, path in folder.whole_checkpoints().items()}
    stopped = training.step < recipe.steps and not done
    return RunResult(training.step, loss, checkpoints, recipe.digest(), stopped=stopped, reached=done,
                     held_out_loss=held if isinstance(held, float) else None)  # fmt: skip


def _asked(stop: StopRequest, team: Team) -> bool:
    return team.any(stop.asked)


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
    whole = None if peak is None else peak * training.team.size
    return Gauge(flops_per_token(recipe.model, recipe.data.seq_len), whole)
