"""`pretrace train RECIPE --out RUN`, `pretrace train --resume RUN`; under torchrun with several processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pretrace.errors import EXIT_STOPPED, PretraceError

if TYPE_CHECKING:
    from pretrace.runlog import Record


def _folder(text: str) -> Path:
    # A variable that is not set reaches us as an empty text, and that would mean the current folder.
    if not text.strip():
        raise PretraceError("an empty text names no folder", "--out or --resume", "name a folder; . is the current one")
    return Path(text)


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("train", help="Train a recipe into a folder, or go on with a run to the same bits.")(train)


def train(
    recipe: Path | None = typer.Argument(None, help="Recipe (YAML)."),
    out: Path | None = typer.Option(None, "--out", parser=_folder, metavar="<path>", help="Folder of the new run."),
    resume: Path | None = typer.Option(None, "--resume", parser=_folder, metavar="<path>", help="Run to go on with: its folder."),
    go_on: bool = typer.Option(False, "--go-on", help="With RECIPE and --out: go on if there is a run, here or in --mirror."),
    set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override a value; on --resume it is recorded."),
    allow: list[str] = typer.Option([], "--allow", metavar="KEY", help="On --resume: this change of recipe.yaml is meant."),
    engine: str = typer.Option("plan", "--engine", help="plan, ddp, fsdp2 or zero1 (with torchrun, one process a rank)."),
    # not --log: torchrun takes it for one of its own
    log: list[str] = typer.Option(["tensorboard"], "--log-to", help="tensorboard, wandb:PROJECT, trackio:PROJECT, none."),
    mirror: str = typer.Option("", "--mirror", metavar="URL", help="Copy checkpoints there, and go on from there."),
    tokenizer: Path | None = typer.Option(None, "--tokenizer", help="tokenizer.json to keep with every checkpoint."),
    profile: int = typer.Option(0, "--profile", min=0, metavar="N", help="Trace N updates into RUN/profile."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:  # fmt: skip
    """Parses, trains, prints."""
    from pretrace import recipe as recipes
    from pretrace import train as room
    from pretrace.cli.console import print_json, progress, say
    from pretrace.recipe.read import split
    from pretrace.train.engage import ENGINES
    from pretrace.train.mirror import Mirror, fetch
    from pretrace.train.team import joined

    if engine not in ("plan", *ENGINES):
        raise PretraceError(f"unknown engine {engine!r}", "--engine", f"use one of: plan, {', '.join(ENGINES)}")
    with joined() as team, ExitStack() as stack:
        place = out if go_on else resume
        if mirror and place is not None and not room.RunFolder(place).recipe.exists():
            empty = place
            team.first(lambda: fetch(mirror, empty))
        if go_on and out is not None and room.RunFolder(out).recipe.exists():
            resume, recipe, out = out, None, None
        _one_thing(recipe, out, resume, set_, allow)
        place = resume or out or Path()
        if resume:
            room.RunFolder(resume).refuse_nothing()
        edits = dict(map(split, set_)) if resume else {}
        chosen = recipes.load(room.RunFolder(resume).recipe if resume else recipe or "", () if resume else set_)
        steps = chosen.with_values(edits, where="--set").steps if edits else chosen.steps
        shown = stack.enter_context(progress("training", steps, "steps", str(place)))

        def tell(said: str) -> None:
            typer.echo(f"pretrace: {said}", err=True)

        def watch(record: Record) -> None:
            shown.to(record.step, _note(record))
            for alarm in record.alarms:
                tell(f"alarm at step {record.step}: {alarm.what}")

        saved = None
        if mirror and team.leads:
            saved = stack.enter_context(Mirror(mirror, room.RunFolder(place), tell)).add
        company = room.Company(
            watch=watch, tell=tell, loggers=[name for name in log if name != "none"], tokenizer=tokenizer, saved=saved,
            profile_steps=profile, team=team, engine=engine,  # type: ignore[arg-type]
        )  # fmt: skip
        if resume:
            result = room.resume(resume, changes=edits, allow=allow, company=company)
        else:
            result = room.run(chosen, place, company=company)
    if team.leads:
        if json:
            print_json(result)
        else:
            say(_sentence(result, place))
    if result.stopped:
        raise typer.Exit(EXIT_STOPPED)


def _one_thing(recipe: Path | None, out: Path | None, resume: Path | None, set_: list[str], allow: list[str]) -> None:
    if resume is not None and out is not None:
        raise PretraceError("--out is for a new run, --resume goes on with one", "--out, --resume",
                            "leave one of them out; --go-on with RECIPE and --out does whichever fits")  # fmt: skip
    if resume is None and recipe is not None and out is None:
        raise PretraceError("say where the run shall lie", "--out", "add --out FOLDER")
    if resume is None and recipe is None:
        raise PretraceError("say what to train: a recipe and --out, or --resume", "", "see pretrace train --help")
    if resume is not None and recipe is not None:
        raise PretraceError("a resumed run has its recipe", "--resume", "leave RECIPE out; --set changes a value")
    if allow and resume is None:
        raise PretraceError("--allow is for a resumed run", "--allow", "edit the recipe, or use --set")


def _note(record: Record) -> str:
    parts = [f"step {record.step:,}", f"loss {record.loss:.4f}"]
    if record.tokens_per_s:
        parts.append(f"{record.tokens_per_s:,.0f} tokens/s")
    if record.mfu is not None:
        parts.append(f"MFU {record.mfu:.0%}")
    if isinstance(loss := record.notes.get("held_out_loss"), float):
        parts.append(f"held-out {loss:.4f}")
    return "  ".join(parts)


def _sentence(result: Any, place: Path) -> str:
    how = "Stopped after" if result.stopped else "Reached its target after" if result.reached else "Trained"
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    loss += "" if result.held_out_loss is None else f", held-out {result.held_out_loss:.4f}"
    steps = f"{result.steps:,} step{'s' if result.steps != 1 else ''}"
    last = next(reversed(result.checkpoints.values()), "none")
    text = f"{how} {steps}{loss}. Newest checkpoint: {last}"
    return f"{text}\nGo on with: pretrace train --resume {place}" if result.stopped else text
