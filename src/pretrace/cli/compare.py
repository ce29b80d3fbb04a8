"""`pretrace compare A B`: two checkpoints of any formats, and the name of the move between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pretrace.errors import EXIT_FINDING, EXIT_OK


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("compare", help="Compare two checkpoints, tensor by tensor.")(compare)


def compare(
    a: str = typer.Argument(..., help="A checkpoint: a file, a folder, or an address."),
    b: str = typer.Argument(..., help="Another one; the formats may differ."),
    base: str = typer.Option("", help="The checkpoint that both started from: adds the update cosine U.Cos."),
    threads: int = typer.Option(0, help="Readers side by side; 0: the cores of the machine, four at most."),
    moves: bool = typer.Option(True, help="Look for the known move that makes a differing tensor equal."),
    everything: bool = typer.Option(False, "--all", help="Show every tensor that differs."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    html: Path = typer.Option(None, "--html", help="Write a page with tables and pictures."),
) -> None:
    """Exit 0: the same tensors, bit for bit. Exit 1: a difference."""
    from pretrace.cli.console import print_json, say

    found = _compare(a, b, base, threads, moves, quiet=as_json)
    if html is not None:
        from pretrace.files import write_text
        from pretrace.report.compare import page_of
        from pretrace.report.page import render

        write_text(html, render(page_of(found)))
    if as_json:
        print_json(found.summary())
    else:
        _print(found, limit=10**9 if everything else 12)
        if html is not None:
            say(f"  page: {html}")
    raise typer.Exit(EXIT_OK if found.same else EXIT_FINDING)


def _compare(a: str, b: str, base: str, threads: int, moves: bool, *, quiet: bool) -> Any:
    from contextlib import ExitStack

    from pretrace.checkpoint import open_state
    from pretrace.cli.console import progress
    from pretrace.compare import tensors

    with ExitStack() as stack:
        views = [stack.enter_context(open_state(path)) for path in (a, b, *([base] if base else []))]
        total = sum(view.info(name).size_bytes for view in views for name in view.names())
        bar = stack.enter_context(progress("comparing", total / 1e6, "MB"))
        return tensors(
            views[0], views[1], views[2] if base else None, threads=threads or None, moves=moves,
            labels=(a, b, base), advance=None if quiet else lambda n: bar.advance(n / 1e6),
        )  # fmt: skip


def _print(found: Any, limit: int) -> None:
    from pretrace.cli.console import say
    from pretrace.compare import words

    say(words.sentence(found))
    for line in words.details(found, limit):
        say(line)
    for note in found.notes:
        if not note.startswith("layer"):
            say(f"  note: {note}")
