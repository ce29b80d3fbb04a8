"""`pretrace evaluate CKPT... --tasks ...`: how good is it, with every choice that moves the number in the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pretrace.cli.panels import Grouped
from pretrace.errors import EXIT_FINDING, EXIT_OK, PretraceError

if TYPE_CHECKING:
    from pretrace.cli.console import Progress
    from pretrace.evaluate.resolve import Wanted
    from pretrace.evaluate.result import Evaluation
    from pretrace.evaluate.subject import Subject

_ROWS = "What is scored"
_MOVES = "Choices that move the number"
_RUN = "How it is computed"
_ASK = "Questions to scored rows"


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    about = "Evaluate checkpoints on the harness's tasks, and say what the numbers rest on."
    app.command("evaluate", cls=Grouped, help=about)(evaluate)


def evaluate(
    checkpoints: list[str] = typer.Argument(None, help="Checkpoints, or a folder of steps; without --tasks, rows."),
    tasks: str = typer.Option(
        "", help="Tasks or groups of lm-evaluation-harness, with commas between.", rich_help_panel=_ROWS
    ),
    data: list[str] = typer.Option(
        [], help="Local rows: TASK=FILE, or TASK:SPLIT=FILE. May be repeated.", rich_help_panel=_ROWS
    ),
    out: Path = typer.Option(
        Path("evaluations"), help="Folder of results and of answers that are kept.", rich_help_panel=_ROWS
    ),
    max_length: int = typer.Option(
        None, min=2, help="Tokens that the model reads at most, and of a window.", rich_help_panel=_MOVES
    ),
    truncation: str = typer.Option(
        None, help="left or refuse: what is done with a context that does not fit.", rich_help_panel=_MOVES
    ),
    bos: str = typer.Option(
        None, help="tokenizer, always or never: the begin-of-text token before contexts.", rich_help_panel=_MOVES
    ),
    prefix_token: str = typer.Option(
        None, help="Id or text of the token before a text without context.", rich_help_panel=_MOVES
    ),
    dtype: str = typer.Option(None, help="float32, bfloat16 or float16.", rich_help_panel=_MOVES),
    limit: int = typer.Option(None, min=1, help="The first rows of each task only.", rich_help_panel=_ROWS),
    fewshot: int = typer.Option(None, min=0, help="Examples before each row.", rich_help_panel=_ROWS),
    batch_tokens: int = typer.Option(None, min=1, help="Positions of one forward.", rich_help_panel=_RUN),
    threads: int = typer.Option(1, min=1, help="Threads of the CPU. Moves the last bits only.", rich_help_panel=_RUN),
    through: str = typer.Option(None, help="decoder (pretrace's) or transformers.", rich_help_panel=_RUN),
    device: str = typer.Option("cpu", help="cpu, cuda, cuda:1 ...", rich_help_panel=_RUN),
    tokenizer: Path = typer.Option(
        None, help="Folder or file of the tokenizer, if it is not beside the checkpoint.", rich_help_panel=_MOVES
    ),
    config: Path = typer.Option(
        None,
        "--model",
        "--config",
        help="The model's config.json, if the checkpoint does not carry it.",
        rich_help_panel=_MOVES,
    ),
    include: Path = typer.Option(
        None, help="Folder of task definitions beside the harness's own.", rich_help_panel=_ROWS
    ),
    explain: list[str] = typer.Option(
        [], metavar="TASK.METRIC=FIGURE", help="Which convention prints a published figure.", rich_help_panel=_ASK
    ),
    against: Path = typer.Option(
        None, help="Published results (lm-eval JSON, or CSV) to stand beside ours.", rich_help_panel=_ASK
    ),
    whose: str = typer.Option(
        "", help="Of --against: whose figures, NAME or NAME@STEP; of --card: the name on it.", rich_help_panel=_ASK
    ),
    html: Path = typer.Option(
        None, "--html", help="Write a page with intervals, conventions and plots.", rich_help_panel=_ASK
    ),
    card: Path = typer.Option(None, "--card", help="Write the block of a model card.", rich_help_panel=_ASK),
    check_command: str | None = typer.Option(
        None, help="An lm_eval command: say what in it is malformed or ignored.", rich_help_panel=_ASK
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Exit 0: every row was scored, and what was asked is answered. Exit 1: some could not be; a figure no convention prints."""
    from pretrace.cli.evaluate_rows import Questions, answer, check

    if check_command is not None:
        raise typer.Exit(check(check_command, as_json=as_json))
    asked_of_rows = Questions(explain, against, whose, fewshot, html, card)
    if not checkpoints:
        raise PretraceError("no checkpoint and no rows are named", "pretrace evaluate", "name one")
    if not tasks:
        raise typer.Exit(answer(checkpoints, asked_of_rows, as_json=as_json))
    from pretrace.evaluate import data_files, engine, subject

    wanted = _wanted(max_length=max_length, truncation=truncation, bos=bos, prefix=prefix_token, dtype=dtype, through=through,
                     device=device, limit=limit, fewshot=fewshot, batch_tokens=batch_tokens, threads=threads)  # fmt: skip
    names = tuple(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    asked = engine.Asked(names, data_files.parse(data), include, wanted, out)
    typer.echo(f"opening {', '.join(checkpoints)} and the harness's tasks {', '.join(names)} -> {out}", err=True)
    found = subject.subjects(checkpoints, config=config, tokenizer=tokenizer)
    with _Shown(quiet=as_json) as shown:
        done = engine.evaluate(found, asked, declare=shown.declare, begin=shown.begin)
    summary = done[0].summary() if len(done) == 1 else {"checkpoints": [one.summary() for one in done]}
    if not as_json:
        _say(done)
    if asked_of_rows.any:
        code = answer([one.folder for one in done], asked_of_rows, as_json=as_json, also=summary)
        raise typer.Exit(EXIT_FINDING if any(one.left_out for one in done) else code)
    if as_json:
        from pretrace.cli.console import print_json

        print_json(summary)
    raise typer.Exit(EXIT_FINDING if any(one.left_out for one in done) else EXIT_OK)


_CHOICES = {"truncation": ("left", "refuse"), "bos": ("tokenizer", "always", "never"),
            "dtype": ("float32", "bfloat16", "float16"), "through": ("decoder", "transformers")}  # fmt: skip


def _wanted(**values: Any) -> Wanted:
    from pretrace.evaluate.resolve import Wanted

    for name, known in _CHOICES.items():
        if values[name] is not None and values[name] not in known:
            raise PretraceError(f"--{name} {values[name]}", "pretrace evaluate", f"choose {', '.join(known)}")
    return Wanted(**values)


class _Shown:
    """What a person sees while it runs: the settings first, then a line of progress for each task."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._shown: Progress | None = None
        self._before: dict[str, str] = {}

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def declare(self, evaluation: Evaluation) -> None:
        """Prints what moves the numbers; of further checkpoints only what differs."""
        from pretrace.cli.console import say
        from pretrace.evaluate.words import settings_lines

        if self._quiet:
            return
        lines = settings_lines(evaluation)
        say(evaluation.checkpoint)
        for name, line in lines.items():
            if self._before.get(name) != line:
                say(f"  {line}")
        self._before = lines

    def begin(self, subject: Subject, task: str, folder: Path) -> Any:
        """The progress of a task; what an earlier process kept does not count as speed."""
        self._close()

        def show(done: int, total: int, unit: str) -> None:
            from pretrace.cli.console import Progress

            if self._shown is None:
                self._shown = Progress(f"{subject.name} {task}", total, unit, sys.stderr, str(folder))
            self._shown.to(done)

        return show

    def _close(self) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None


def _say(done: list[Evaluation]) -> None:
    from pretrace.cli.console import say
    from pretrace.evaluate.words import result_lines, series_lines

    say()
    if len(done) > 1 and all(one.step is not None for one in done):
        for line in series_lines(done):
            say(line)
        return
    for one in done:
        for line in ([one.checkpoint] if len(done) > 1 else []) + result_lines(one):
            say(line)
