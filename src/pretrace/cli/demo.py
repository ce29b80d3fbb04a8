"""`pretrace demo`: the main job on a small real case, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

import pretrace.cli.console as console


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("demo")(demo)


def demo(
    seed: int = typer.Option(1, min=0, help="Changes the runs, not the verdict."),
    claim: Literal["standard", "deduped"] = typer.Option("deduped", help="What is claimed of the reference."),
    quick: bool = typer.Option(False, "--quick", help="A smaller model and fewer steps."),
    out: Path = typer.Option(
        Path("demo"), help="Folder for data, runs and report; a stopped demo goes on, a finished one there is removed."
    ),
    workers: int = typer.Option(2, min=0, help="Processes that train, one thread each; 0: this process."),
    corpus: Path | None = typer.Option(None, help="Another corpus: JSON lines with `id` and `text`."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Make a checkpoint that is labelled wrongly, and find out on which edition of the books it was trained.

    Eight novels, a third of the text in a second edition; a standard and a deduplicated corpus of them; a reference
    trained on the standard one and labelled "deduped". Nothing is precomputed. Exit code 0 whenever the case ran through.
    """
    from pretrace.cli.retrace import show, watching
    from pretrace.retrace import demo as demos

    with console.Counter("training runs", "runs", str(out)) as counter:
        result = demos.demo(
            out, seed=seed, claim=claim, quick=quick, workers=workers, corpus=corpus,
            tell=lambda what: None if json else console.say(what + " ..."), watch=watching(counter, json),
        )  # fmt: skip
    show(result, out, json)
