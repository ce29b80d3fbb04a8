"""`pretrace audit PATH...`: is this checkpoint whole; is this series what its names say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from pretrace.errors import EXIT_FINDING, EXIT_OK, EXIT_UNDECIDED, PretraceError

EXITS = {"pass": EXIT_OK, "fail": EXIT_FINDING, "undecided": EXIT_UNDECIDED}


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("audit", help="Check a checkpoint, or a series of steps, and say what is wrong.")(audit)


def audit(
    paths: list[str] = typer.Argument(..., help="A checkpoint, a folder of steps, or several steps."),
    reference: str = typer.Option("", help="A checkpoint, or a fingerprint, that should hold the same tensors."),
    probe: Path = typer.Option(None, help="Token ids (.npz, .npy) or a text, to be scored; needs torch."),
    fingerprint: Path = typer.Option(None, help="Write a small file that stands for the checkpoint."),
    stats: bool = typer.Option(False, help="Print the statistics of every tensor."),
    stats_csv: Path = typer.Option(None, help="Save the statistics of every tensor as CSV."),
    read: bool = typer.Option(
        None, "--read/--no-read", help="For a series: read tensors (default for local paths) or not."
    ),
    keep: Path = typer.Option(None, help="For a series: a folder for finished steps, so that a stopped audit goes on."),
    threads: int = typer.Option(0, help="Readers side by side; 0: the cores of the machine, four at most."),
    everything: bool = typer.Option(False, "--all", help="Show every finding."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    html: Path = typer.Option(None, "--html", help="Write a page with tables and pictures."),
) -> None:
    """Exit 0: pass. Exit 1: an error among the findings. Exit 3: undecided."""
    steps = _steps(paths)
    limit = 10**9 if everything else 30
    if steps:
        local = all("://" not in path for path in steps.values())
        found: Any = _series(steps, paths, local if read is None else read, keep, quiet=as_json)
        if not as_json:
            _say_series(found, limit)
    else:
        found = _checkpoint(paths[0], reference, probe, fingerprint, threads, quiet=as_json)
        if not as_json:
            _say_checkpoint(found, limit, stats)
    if stats_csv is not None:
        _save(found, stats_csv)
    if html is not None:
        _page(found, html, quiet=as_json)
    if as_json:
        from pretrace.cli.console import print_json

        print_json(found.summary() if steps else _with_stats(found, stats))
    raise typer.Exit(EXITS[found.outcome])


def _steps(paths: list[str]) -> dict[int, str]:
    """The steps of a series; empty for one checkpoint."""
    from pretrace.compare.steps import step_of, steps_in

    if len(paths) == 1:
        found = steps_in(paths[0])
        return found if len(found) > 1 else {}
    steps: dict[int, str] = {}
    for path in paths:
        step = step_of(path)
        if step is None or step in steps:
            raise PretraceError(
                "a path of the series names no step of its own", path, "put the step into its name (step1000)"
            )
        steps[step] = path
    return steps


def _checkpoint(path: str, reference: str, probe: Path | None, out: Path | None, threads: int, *, quiet: bool) -> Any:
    from contextlib import ExitStack

    from pretrace.audit import checkpoint
    from pretrace.cli.console import progress
    from pretrace.compare import fingerprint as prints

    with ExitStack() as stack:
        size = _size(path)
        bar = stack.enter_context(progress("auditing", size / 1e6, "MB"))
        advance = None if quiet else lambda n: bar.advance(n / 1e6)
        found = checkpoint(path, reference=_reference(reference, stack), probe=_probe(probe, path), threads=threads or None,
                           advance=advance)  # fmt: skip
        if out is not None:
            from pretrace.checkpoint import open_state

            view = stack.enter_context(open_state(path))
            prints.write(prints.fingerprint(view, path, threads=threads or None), out)
        return found


def _reference(path: str, stack: Any) -> Any:
    from pretrace.checkpoint import open_state
    from pretrace.compare.fingerprint import is_fingerprint, read

    if not path:
        return None
    return read(path) if is_fingerprint(path) else stack.enter_context(open_state(path))


def _probe(path: Path | None, checkpoint: str) -> Any:
    from pretrace.audit.probe import read_probe

    return None if path is None else read_probe(path, checkpoint)


def _series(steps: dict[int, str], paths: list[str], read: bool, keep: Path | None, *, quiet: bool) -> Any:
    from pretrace.audit.several import series
    from pretrace.cli.console import progress

    with progress("auditing", len(steps), "steps", str(keep or "")) as bar:
        done = None if quiet else lambda key: bar.advance(1, key)
        return series(steps, paths[0] if len(paths) == 1 else "", read=read, keep=keep, done=done)


def _say_checkpoint(found: Any, limit: int, stats: bool) -> None:
    from pretrace.audit import words
    from pretrace.cli.console import say

    say(words.sentence(found))
    if found.findings:
        say()
    for line in words.details(found.findings, found.checks_not_run, limit):
        say(line)
    if stats and found.table is not None:
        say()
        for line in words.table(found.table):
            say(line)


def _say_series(found: Any, limit: int) -> None:
    from pretrace.audit import words
    from pretrace.cli.console import say

    say(words.series_sentence(found))
    if found.findings:
        say()
    for line in words.details(found.findings, found.checks_not_run, limit):
        say(line)


def _with_stats(found: Any, stats: bool) -> dict[str, Any]:
    from pretrace.compare.statistics import summary

    rows = [summary(t) for t in found.table.tensors] if stats and found.table is not None else None
    return {**found.summary(), **({"statistics": rows} if rows is not None else {})}


def _save(found: Any, path: Path) -> None:
    import csv
    import io

    from pretrace.compare.statistics import summary
    from pretrace.files import write_text

    if getattr(found, "table", None) is None:
        raise PretraceError("there are no statistics: the tensors were not read", str(path), "mend the errors first")
    text = io.StringIO()
    rows = [summary(t) for t in found.table.tensors]
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["name"])
    writer.writeheader()
    writer.writerows({**row, "shape": "x".join(map(str, row["shape"]))} for row in rows)
    write_text(path, text.getvalue())


def _page(found: Any, path: Path, *, quiet: bool) -> None:
    from pretrace.cli.console import say
    from pretrace.files import write_text
    from pretrace.report.audit import page_of
    from pretrace.report.page import render

    write_text(path, render(page_of(found)))
    if not quiet:
        say(f"page: {path}")


def _size(path: str) -> int:
    """Bytes below a local path, for the progress display."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(at, f)) for at, _, names in os.walk(path) for f in names)
