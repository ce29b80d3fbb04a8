"""`pretrace probe`: in which order does a collective of this cluster add its ranks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pretrace.cli.console import print_json, say
from pretrace.errors import EXIT_OK, EXIT_UNDECIDED, PretraceError

if TYPE_CHECKING:
    from pretrace.step.probe import Seen


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("probe")
    def probe(
        numel: list[int] = typer.Option([], "--numel", help="Elements of the buffers to probe; repeat it."),
        dtype: list[str] = typer.Option(["float32"], "--dtype", help="float32, bfloat16 or float16; repeat it."),
        collective: str = typer.Option("all_reduce", "--collective", help="all_reduce or reduce_scatter."),
        backend: str = typer.Option("gloo", "--backend", help="gloo or nccl."),
        spawn: int = typer.Option(0, "--spawn", help="Start this many local processes instead of using a launcher's."),
        raw: Path | None = typer.Option(None, "--from", help="Understand a raw file that the script wrote elsewhere."),
        out: Path | None = typer.Option(None, "--out", help="Write the recorded order here (JSON)."),
        script: bool = typer.Option(False, "--print-script", help="Print the script for a cluster without pretrace."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    ) -> None:
        """Find the order in which a collective adds ranks, and record it for a plan."""
        from pretrace.step import probe as reading
        from pretrace.step import probe_run

        if script:
            say(probe_run.script().rstrip("\n"))
            raise typer.Exit(EXIT_OK)
        if raw is None and not numel:
            raise PretraceError("nothing to probe", "pretrace probe", "give --numel N, or --from RAW.json")
        with tempfile.TemporaryDirectory(prefix="pretrace-probe-") as folder:
            if raw is None:
                raw = Path(folder) / "raw.json"
                probe_run.collect_to(raw, numel, dtype, collective, backend, spawn)
                if not spawn and os.environ.get("RANK", "0") != "0":
                    raise typer.Exit(EXIT_OK)  # rank 0 speaks for all
            seen = reading.read(raw)
        found = all(one.verdict == "order" for one in seen)
        recorded = reading.record(seen) if found and out is not None else None
        if recorded is not None and out is not None:
            probe_run.write_order(recorded, out)
        if as_json:
            print_json({"seen": seen, "out": str(out) if recorded is not None else None})
        else:
            _show(seen, str(out) if recorded is not None else "")
        raise typer.Exit(EXIT_OK if found else EXIT_UNDECIDED)


def _show(seen: list[Seen], out: str) -> None:
    from pretrace.step.probe import known_as
    from pretrace.step.probe_tree import words_of

    for one in seen:
        say(f"{one.words}   {one.collective} {one.dtype}, {one.world_size} ranks, {one.numel:,} elements")
        for piece in one.ranges[:8]:
            say(f"  {piece.start:>12,} .. {piece.stop:>12,}   {words_of(piece.nesting)}")
        if len(one.ranges) > 8:
            say(f"  and {len(one.ranges) - 8} ranges more")
        for name in known_as(one):
            say(f"  the same additions as {name}")
        if one.mend:
            say(f"  mend    {one.mend}")
    if out:
        say(f"recorded in {out}: put it under step.reduction.order")
