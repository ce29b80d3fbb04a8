"""`pretrace train RECIPE --out RUN`, `pretrace train --resume RUN`."""

from __future__ import annotations

from pathlib import Path

import typer

from pretrace.errors import EXIT_STOPPED, PretraceError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("train", help="Train a recipe into a folder, or go on with a run to the same bits.")(train)


def train(
    recipe: Path | None = typer.Argument(None, help="Recipe (YAML)."),
    out: Path | None = typer.Option(None, "--out", help="Folder of the new run."),
    resume: Path | None = typer.Option(None, "--resume", help="Folder of the run to go on with."),
    set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override a value of the recipe."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Parses, trains, prints."""
    from pretrace import recipe as recipes
    from pretrace import train as room
    from pretrace.cli.console import print_json, progress, say
    from pretrace.runlog import Record

    if (resume is None) == (recipe is None or out is None):
        raise PretraceError("say what to train: a recipe and --out, or --resume", "", "see pretrace train --help")
    if resume is not None and (recipe is not None or set_):
        raise PretraceError("a resumed run keeps its recipe", "--resume", "leave RECIPE and --set out")
    chosen = recipes.load(room.RunFolder(resume).recipe) if resume else recipes.load(recipe or "", set_)
    with progress("training", chosen.steps, "steps", str(resume or out)) as shown:

        def watch(record: Record) -> None:
            shown.advance(1, f"step {record.step:,}  loss {record.loss:.4f}")

        result = room.resume(resume, watch=watch) if resume else room.run(chosen, out or "", watch=watch)
    if json:
        print_json(result)
    else:
        loss = "" if result.loss is None else f", loss {result.loss:.4f}"
        last = list(result.checkpoints.values())[-1:]
        say(
            f"{'Stopped after' if result.stopped else 'Trained'} {result.steps:,} steps{loss}. Newest checkpoint: {''.join(last)}"
        )
        if result.stopped:
            say(f"Go on with: pretrace train --resume {resume or out}")
    if result.stopped:
        raise typer.Exit(EXIT_STOPPED)
