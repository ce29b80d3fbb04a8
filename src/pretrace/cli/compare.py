"""`pretrace compare A B`: two checkpoints, two runs, or two fingerprints; and the name of the move between checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from pretrace.errors import EXIT_FINDING, EXIT_OK, PretraceError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("compare", help="Compare two checkpoints, tensor by tensor; or a run with other runs, step by step.")(
        compare
    )


def compare(
    a: str = typer.Argument(..., help="A checkpoint (file, folder, address), a folder of steps, or a fingerprint."),
    b: str = typer.Argument(..., help="Another one; the formats may differ."),
    more: list[str] = typer.Argument(None, help="For a folder of steps: more runs to find the nearest of."),
    base: str = typer.Option("", help="The checkpoint that both started from: adds the update cosine U.Cos."),
    threads: int = typer.Option(0, min=0, help="Readers side by side; 0: the cores of the machine, four at most."),
    moves: bool = typer.Option(True, help="Look for the known move that makes a differing tensor equal."),
    everything: bool = typer.Option(False, "--all", help="Show every tensor that differs."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    html: Path = typer.Option(None, "--html", help="Write a page with tables and pictures."),
) -> None:
    """Exit 0: the same tensors, bit for bit. Exit 1: a difference."""
    from pretrace.cli.console import print_json, say
    from pretrace.compare import words

    found = _compare(a, [b, *(more or [])], base, threads or None, moves, quiet=as_json)
    if as_json:
        print_json(found.summary())
    else:
        for line in words.lines(found, limit=10**9 if everything else 12):
            say(line)
    if html is not None:
        from pretrace.files import write_text
        from pretrace.report.compare import page_of
        from pretrace.report.page import render

        write_text(html, render(page_of(found)))
        if not as_json:
            say(f"  page: {html}")
    raise typer.Exit(EXIT_OK if found.same else EXIT_FINDING)


def _compare(a: str, others: list[str], base: str, threads: int | None, moves: bool, *, quiet: bool) -> Any:
    from pretrace.compare.fingerprint import is_fingerprint
    from pretrace.compare.steps import steps_in

    if any(is_fingerprint(path) for path in (a, *others)):
        return _prints(a, others, threads)
    found = {path: steps_in(path) for path in (a, *others)}
    run = next((path for path, steps in found.items() if len(steps) > 1), "")
    if run:
        single = next((path for path, steps in found.items() if not steps), "")
        if single:
            raise PretraceError(
                f"{run} is a folder of {len(found[run])} steps, {single} is none", single,
                f"name one of the steps, such as {list(found[run].values())[-1]}, or compare two folders of steps",
            )  # fmt: skip
        return _series(a, found[a], {_label(path, others): found[path] for path in others}, base, threads, quiet=quiet)
    if len(others) > 1:
        raise PretraceError(
            "two checkpoints are compared at a time", others[1], "name one, or folders of steps to compare whole runs"
        )
    return _checkpoints(a, others[0], base, threads, moves, quiet=quiet)


def _label(path: str, others: list[str]) -> str:
    """The last part of the path, or all of it where that is not enough to tell the runs apart."""
    short = [os.path.basename(other.rstrip("/")) for other in others]
    name = os.path.basename(path.rstrip("/"))
    return name if short.count(name) == 1 else path


def _checkpoints(a: str, b: str, base: str, threads: int | None, moves: bool, *, quiet: bool) -> Any:
    from contextlib import ExitStack

    from pretrace.checkpoint import open_state
    from pretrace.cli.console import progress
    from pretrace.compare import tensors

    with ExitStack() as stack:
        views = [stack.enter_context(open_state(path)) for path in (a, b, *([base] if base else []))]
        total = sum(view.info(name).size_bytes for view in views for name in view.names())
        bar = stack.enter_context(progress("comparing", total / 1e6, "MB"))
        return tensors(
            views[0], views[1], views[2] if base else None, threads=threads, moves=moves,
            labels=(a, b, base), advance=None if quiet else lambda n: bar.advance(n / 1e6),
        )  # fmt: skip


def _series(a: str, steps: Any, runs: Any, base: str, threads: int | None, *, quiet: bool) -> Any:
    from pretrace.cli.console import progress
    from pretrace.compare import series

    with progress("comparing", len(steps), "steps") as bar:
        done = None if quiet else lambda step: bar.advance(1, f"step {step}")
        return series(steps, runs, base=base, label=a, threads=threads, done=done)


def _prints(a: str, others: list[str], threads: int | None) -> Any:
    from pretrace.checkpoint import open_state
    from pretrace.compare.fingerprint import distance, fingerprint, is_fingerprint, read

    def one(path: str) -> Any:
        if is_fingerprint(path):
            return read(path)
        with open_state(path) as view:
            return fingerprint(view, path, threads=threads)

    if len(others) > 1:
        raise PretraceError("two fingerprints are compared at a time", others[1], "name one")
    return distance(one(a), one(others[0]))
