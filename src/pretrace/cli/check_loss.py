"""`pretrace check-loss MODULE:FUNCTION`: which denominator does a training step divide its loss by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pretrace.cli.console import print_json, say
from pretrace.errors import EXIT_FINDING, EXIT_OK, EXIT_UNDECIDED, PretraceError

if TYPE_CHECKING:
    from pretrace.step.check_loss import Naming

_EXITS = {"named": EXIT_OK, "wrong-factor": EXIT_FINDING, "unknown": EXIT_UNDECIDED}


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command("check-loss")
    def check_loss(
        step: str = typer.Argument("", help="MODULE:FUNCTION or path/to/file.py:FUNCTION; see docs/check-loss.md."),
        hf: bool = typer.Option(False, "--hf", help="Check the installed Hugging Face Trainer instead."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    ) -> None:
        """Name the loss denominator of a training step from the gradients it leaves."""
        from pretrace.step import check_loss as rules
        from pretrace.step import check_loss_hf, check_loss_run

        if hf == bool(step):
            raise PretraceError("give a training step, or --hf", "pretrace check-loss", "write MODULE:FUNCTION")
        about = check_loss_hf.version() if hf else step
        naming = rules.name(check_loss_run.measure(check_loss_hf.STEP if hf else step))
        if as_json:
            print_json({"step": about, "lengths": rules.LENGTHS, "naming": naming})
        else:
            _show(about, rules.LENGTHS, naming)
        raise typer.Exit(_EXITS[naming.outcome])


def _show(about: str, lengths: tuple[int, ...], naming: Naming) -> None:
    say(naming.sentence)
    say(f"  {about}; {len(naming.rows)} mixes, worst difference {naming.worst:.1e}")
    say()
    say(f"  one label weighs one over            labels: {''.join(f'{n:>10}' for n in lengths)}")
    for row in naming.rows:
        ranks = "1 rank " if row.world_size == 1 else f"{row.world_size} ranks"
        place = f"  {ranks} x gas {row.grad_accum_steps} x {row.micro_batch}"
        for words, weights in (("measured", row.measured), (f"if {naming.denominator}", row.expected)):
            say(f"{place} {words:<24}{''.join(f' {word:>9}' for word in _inverses(weights))}")
            place = " " * len(place)


def _inverses(weights: tuple[float, ...]) -> list[str]:
    """One over each weight; "none" for a label that weighs nothing beside the others."""
    largest = max(map(abs, weights))
    return [f"{1 / weight:.4g}" if abs(weight) > 1e-5 * largest else "none" for weight in weights]
