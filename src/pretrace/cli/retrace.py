"""`pretrace retrace`: which data, order and settings made these checkpoints, and how sure are we."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

import pretrace.cli.console as console

if TYPE_CHECKING:
    from pretrace.retrace import CaseResult, Watch

retrace = typer.Typer(no_args_is_help=True, help="Which data, order and settings made these checkpoints?")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    from pretrace.cli.retrace_stages import add_stages

    add_stages(retrace)
    app.add_typer(retrace, name="retrace")


@retrace.command("run")
def run_case(
    case: Path = typer.Argument(..., metavar="CASE.yaml", help="The case file (see `pretrace retrace init`)."),
    out: Path | None = typer.Option(None, "--out", help="Where runs and report go; default: beside the case file."),
    workers: int = typer.Option(2, min=0, help="Processes that train, one thread each; 0: this process."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Replay every hypothesis of a case against the reference, and say which one made it.

    Exit code: 0 supported, 1 contradicted or partly, 2 unreadable input, 3 undecided.
    """
    from pretrace.provenance import EXIT_CODES
    from pretrace.retrace import load_case, run

    loaded = load_case(case)
    place = place_of(case, out)
    with console.Counter("training runs", "runs", str(place)) as counter:
        result = run(loaded, place, workers=workers, watch=watching(counter, json))
    show(result, place, json)
    raise typer.Exit(EXIT_CODES[result.outcome])


@retrace.command("init")
def init_case(
    path: Path = typer.Argument(Path("case.yaml"), help="The file to write."),
) -> None:
    """Write a commented case file to fill in."""
    from pretrace.errors import PretraceError
    from pretrace.files import write_text
    from pretrace.retrace.template import TEMPLATE

    if path.exists():
        raise PretraceError(f"{path.name} exists already", str(path), "choose another name")
    write_text(path, TEMPLATE)
    console.say(f"wrote {path}; fill it in, then: pretrace retrace run {path}")


@retrace.command("plan")
def plan_case(
    case: Path = typer.Argument(..., metavar="CASE.yaml"),
    budget: float | None = typer.Option(
        None, min=0, help="Device-hours to spend; finds the latest step and the decoys that fit."
    ),
    flops: float = typer.Option(
        4e14, min=1, help="Floating-point operations a second that one device sustains (4e14: H100 at 40%)."
    ),
    price: float = typer.Option(2.5, min=0, help="Price of one device-hour."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Say what a case costs before it starts, and what a budget would buy. Trains and reads nothing."""
    from pretrace.retrace import load_case
    from pretrace.retrace.budget import Machine, affordable, cost
    from pretrace.retrace.inputs import lines, missing
    from pretrace.retrace.tables import cost_line

    loaded, machine = load_case(case), Machine(flops, price)
    declared, absent = cost(loaded, machine), missing(loaded)
    within = affordable(loaded, machine, budget) if budget is not None else None
    if json:
        console.print_json({"declared": declared, "budget": budget, "affordable": within, "missing": absent})
        return
    console.say(f"hypotheses {', '.join(loaded.replayed)}")
    console.say(f"declared   {cost_line(declared)}")
    if budget is not None:
        bought = cost_line(within) if within else "nothing: declare an earlier step, or fewer rivals or settings"
        console.say(f"{budget:g} hours buy   {bought}")
    for line in lines(absent):
        console.say(f"not here   {line}")


@retrace.command("schema")
def print_schema() -> None:
    """Print the JSON schema of case files."""
    from pretrace.retrace.case import Case

    console.print_json(Case.model_json_schema())


@retrace.command("selftest")
def self_test(
    cases: int = typer.Option(40, min=1, help="Cases to try; 700 hold 300 true and 300 false claims."),
    seed: int = typer.Option(1, min=0, help="All randomness follows from it."),
    out: Path = typer.Option(
        Path("selftest"), help="Folder of the data and of finished cases; the same command goes on."
    ),
    workers: int = typer.Option(2, min=0, help="Processes, one thread each."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead."),
) -> None:
    """Try the engine on fresh cases whose truth is known, and print how often it errs.

    Exit code: 1 if any verdict was wrong.
    """
    from pretrace.retrace.selftest import selftest
    from pretrace.retrace.tables import selftest_lines

    with console.Counter("trying cases", "cases", str(out)) as counter:
        result = selftest(out, cases=cases, seed=seed, workers=workers, advance=counter.show)
    show_value(result, selftest_lines(result), json)
    raise typer.Exit(1 if result.wrong else 0)


def place_of(case: Path, out: Path | None) -> Path:
    """The folder of a case's runs: `out`, or one beside the case file."""
    return out or case.parent / f"{case.stem}-out"


def show_value(value: object, shown: list[str], json: bool) -> None:
    """Prints a result: as one JSON object, or as lines."""
    if json:
        console.print_json(value)
        return
    for line in shown:
        console.say(line)


def watching(counter: console.Counter, quiet: bool) -> Watch:
    """The watcher of a case: says the digest before the reference is read, then counts runs."""
    import pretrace.retrace as room
    from pretrace.digest import short

    def locked(digest: str) -> None:
        if not quiet:
            console.say(f"case locked: {short(digest)} ({digest}), before the reference is read")

    def tell(what: str) -> None:
        if not quiet:
            console.say(f"{what} ...")

    return room.Watch(locked=locked, advance=counter.show, tell=tell)


def show(result: CaseResult, place: Path, json: bool) -> None:
    """Writes the result and its page, and prints it."""
    from pretrace.files import write_json, write_text
    from pretrace.report.case import page
    from pretrace.report.page import render
    from pretrace.retrace.words import lines

    report = place / "report.html"
    write_json(place / "result.json", console.plain(result))
    write_text(report, render(page(result)))
    if json:
        console.print_json(result)
        return
    console.say()
    for line in lines(result, str(report)):
        console.say(line)
