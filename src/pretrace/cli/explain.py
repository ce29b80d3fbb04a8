"""`pretrace explain`: why two runs differ. Now: `--step A.yaml B.yaml`, which choice of the update moves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pretrace.cli.console import print_json, progress, say
from pretrace.errors import EXIT_FINDING, EXIT_OK, PretraceError

if TYPE_CHECKING:
    from pretrace.explain.swaps import Explanation


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("explain")
    def explain(
        inputs: list[str] = typer.Argument(..., help="With --step: two step plans, recipes (YAML) or folders of runs."),
        step: bool = typer.Option(
            False, "--step", help="Swap one field of plan A for plan B's at a time, on one update."
        ),
        checkpoint: str = typer.Option("", "--checkpoint", help="The state; without it a small model at its start."),
        data: str = typer.Option(
            "", "--data", help="Token windows (.npy), a data spec, a recipe or a run; else the book corpus."
        ),
        warmup: int = typer.Option(3, "--warmup", min=0, help="Updates under plan A before the measured one."),
        at_step: int | None = typer.Option(
            None, "--at-step", min=0, help="Measure with the learning rate of this update."
        ),
        svg: Path | None = typer.Option(None, "--svg", help="Write the bar chart here."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    ) -> None:
        """Explain a difference: exit 0 where no field moves the update, 1 where one does."""
        if not step:
            raise PretraceError("only --step is there yet", "pretrace explain", "give --step and two step plans")
        if len(inputs) != 2:
            raise PretraceError(f"{len(inputs)} plans are given", "pretrace explain --step", "give two")
        found = _explain(inputs, checkpoint, data, warmup, at_step)
        if svg is not None:
            from pretrace.files import write_text
            from pretrace.report.swaps import bars

            write_text(svg, bars(found))
        if as_json:
            print_json({"sentence": found.sentence, "explanation": found, "inputs": inputs})
        else:
            _show(found, checkpoint, data, str(svg or ""))
        moved = bool(found.whole.fault) or found.whole.update != 0 or found.whole.gradient != 0
        raise typer.Exit(EXIT_FINDING if moved else EXIT_OK)


def _explain(inputs: list[str], checkpoint: str, data: str, warmup: int, at_step: int | None) -> Explanation:
    from pretrace.explain.step_inputs import model_of, plan_of, read_of
    from pretrace.explain.step_swaps import Question, explain_step
    from pretrace.explain.swaps import differing

    a, b = (plan_of(path) for path in inputs)
    asked = Question(a, b, model_of(checkpoint or None), read_of(data or None), warmup, at_step)
    with progress("explaining", len(differing(a, b)) + 3, "updates") as shown:
        return explain_step(asked, lambda note: shown.advance(1, note))


def _show(found: Explanation, checkpoint: str, data: str, svg: str) -> None:
    say(found.sentence)
    say(f"  update {found.step}; state: {checkpoint or 'a two-layer model near its start'}; "
        f"batch: {data or 'the book corpus, unequal lengths'}")  # fmt: skip
    say()
    say(
        f"  {'field':<28} {'update':>9} {'u.cos':>10} {'gradient':>9} {'cosine':>10} {'gain':>8} {'clip':>8} {'leak':>8}  A -> B"
    )
    for effect in (*found.effects, found.whole):
        if effect.fault:
            say(f"  {effect.swap.field:<28} cannot be swapped alone: {effect.fault}")
            continue
        leak = "-" if effect.head_leak is None else f"{effect.head_leak:.1e}"
        skipped = " skipped" if effect.skipped else ""
        say(f"  {effect.swap.field:<28} {effect.update:>9.2e} {effect.update_cosine:>10.6f} {effect.gradient:>9.2e} "
            f"{effect.gradient_cosine:>10.6f} {effect.gain:>8.4f} {effect.clip_coefficient:>8.4f} {leak:>8}{skipped}  "
            f"{effect.swap.a} -> {effect.swap.b}")  # fmt: skip
    if svg:
        say(f"  chart: {svg}")
