"""The stages of `pretrace retrace` that can be used alone: orders, sibling distance, delta-loss, palimpsest, gas table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

import pretrace.cli.console as console
from pretrace.cli.retrace import place_of, show_value, watching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrace.retrace.losses import LossTest


def add_stages(retrace: typer.Typer) -> None:
    """Adds them to the verb."""
    for name, stage in (
        ("delta-loss", delta_loss),
        ("palimpsest", palimpsest),
        ("sibling", sibling),
        ("gas", gas),
        ("orders", orders),
    ):
        retrace.command(name)(stage)


def delta_loss(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    first: int | None = typer.Option(
        None, "--from", min=0, help="The step before the window; default: the case's windows."
    ),
    last: int | None = typer.Option(None, "--to", min=1, help="The last step of the window; its checkpoint is read."),
    later: int = typer.Option(768, min=1, help="Sequences claimed for after the last checkpoint, to compare with."),
    permutations: int = typer.Option(999, min=1, help="Permutations of whole documents."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Without training: did the loss fall more on what each hypothesis claims for a window than on what comes later?"""
    from pretrace.errors import PretraceError
    from pretrace.retrace import load_case
    from pretrace.retrace.losses import Choice, windows
    from pretrace.retrace.stages import delta_choice

    loaded = load_case(case)
    if first is not None and last is not None:
        _show_tests(windows(loaded, first, last, Choice(permutations, 1, later)), json)
    elif first is None and last is None and loaded.delta_loss:
        declared = loaded.delta_loss
        found = [test for window in declared.windows for test in windows(loaded, *window, delta_choice(declared))]
        _show_tests(found, json)
    else:
        raise PretraceError(
            "no window is given", str(case), "give --from and --to, or declare delta_loss in the case file"
        )


def palimpsest(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    step: int | None = typer.Option(
        None, min=1, help="The step whose checkpoint is read; default: as the case declares."
    ),
    outsider: Path | None = typer.Option(
        None, help="A checkpoint of the same model, trained on none of the hypotheses."
    ),
    permutations: int = typer.Option(999, min=1, help="Permutations of whole documents."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Without training: is the loss lower on what each hypothesis claims to have come last?"""
    from pretrace.errors import PretraceError
    from pretrace.retrace import load_case
    from pretrace.retrace.losses import Choice, ranks
    from pretrace.retrace.stages import palimpsest_choice

    loaded = load_case(case)
    if step is not None:
        _show_tests(ranks(loaded, step, outsider, Choice(permutations)), json)
    elif declared := loaded.palimpsest:
        other = outsider or (loaded.at(declared.outsider) if declared.outsider else None)
        _show_tests(ranks(loaded, declared.step, other, palimpsest_choice(declared)), json)
    else:
        raise PretraceError("no step is given", str(case), "give --step, or declare palimpsest in the case file")


def sibling(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    out: Path | None = typer.Option(
        None, "--out", help="Where flattened checkpoints go; default: beside the case file."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Without training: how far is the reference from its counterpart, and couples of other sizes from each other?

    Exit code: 1 if the difference has collapsed.
    """
    from pretrace.errors import PretraceError
    from pretrace.retrace import load_case
    from pretrace.retrace.sibling_distance import sibling_distance
    from pretrace.retrace.tables import sibling_lines

    loaded = load_case(case)
    if loaded.sibling_distance is None:
        raise PretraceError("the case declares no counterpart", str(case), "add the block `sibling_distance`")
    found = sibling_distance(loaded, loaded.sibling_distance, place_of(case, out) / "siblings")
    show_value(found, sibling_lines(found), json)
    raise typer.Exit(1 if found.collapsed else 0)


def gas(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    out: Path | None = typer.Option(None, "--out", help="Where runs are kept; default: beside the case file."),
    workers: int = typer.Option(2, min=0, help="Processes that train, one thread each; 0: this process."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Does dealing the batch to ranks and micro-steps otherwise move the gap between data sets, or only the level?"""
    from pretrace.retrace import load_case
    from pretrace.retrace.run import gas_table
    from pretrace.retrace.tables import topology_lines

    place = place_of(case, out)
    with console.Counter("training runs", "runs", str(place)) as counter:
        found = gas_table(load_case(case), place, workers=workers, watch=watching(counter, json))
    show_value(found, topology_lines(found), json)


def orders(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    steps: int | None = typer.Option(None, min=1, help="Updates to compare; default: 16 times the deciding step."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """From which step on can any two candidates be told apart? Reads token files only.

    Exit code: 1 if two candidates share every batch up to the deciding step.
    """
    from pretrace.retrace import load_case
    from pretrace.retrace.pairs import order_pairs
    from pretrace.retrace.tables import pair_lines

    loaded = load_case(case)
    with console.Counter("reading orders", "orders") as counter:
        found = order_pairs(loaded, steps or 16 * loaded.deciding_step, counter.show)
    show_value(found, pair_lines(found), json)
    raise typer.Exit(1 if found.coinciding else 0)


def _show_tests(tests: Sequence[LossTest], json: bool) -> None:
    from pretrace.retrace.tables import loss_lines

    show_value({"tests": tests}, loss_lines(tests), json)
