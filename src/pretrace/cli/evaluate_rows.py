"""What `pretrace evaluate` says of rows that were scored before: whose convention, how sure, beside what; and of commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrace.errors import EXIT_FINDING, EXIT_OK, EXIT_UNDECIDED

if TYPE_CHECKING:
    from pretrace.evaluate.overview import Overview, ScoredRun


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked of the rows; empty parts are not asked."""

    explain: Sequence[str] = field(default=())
    against: Path | None = None
    model: str = ""
    num_fewshot: int | None = None
    html: Path | None = None
    card: Path | None = None

    @property
    def any(self) -> bool:
        """Whether anything is asked."""
        return bool(self.explain or self.against or self.html or self.card)


def answer(
    paths: Sequence[str | Path], asked: Questions, *, as_json: bool, also: Mapping[str, Any] | None = None
) -> int:
    """Reads the rows under `paths`, says what is asked, writes page and card; returns the exit code.

    `also`: further keys of the JSON object.

    Exit 1: a figure that no convention prints, or one that differs from ours by more than its interval. Exit 3: cannot tell.
    """
    from pretrace.cli.console import print_json, say
    from pretrace.evaluate.harness_results import read_results
    from pretrace.evaluate.overview import Asked, overview, read_runs

    theirs = read_results(asked.against) if asked.against else None
    runs = read_runs(paths)
    wanted = Asked(asked.explain, theirs, asked.model, asked.num_fewshot, as_json or asked.html is not None)
    found = overview(runs, wanted, command=" ".join(["pretrace", *sys.argv[1:]]))
    _write(found, asked)
    if as_json:
        print_json({**(also or {}), **_object(found)})
    else:
        for line in _lines(found, asked):
            say(line)
    return _code(found)


def _code(found: Overview) -> int:
    unexplained = any(one.outcome == "none" and not one.indistinct for one in found.explained)
    if unexplained or any(b.judgement == "different" for b in found.beside):
        return EXIT_FINDING
    # An estimate that reaches the figure, or rows too few to tell it from ours: scoring would decide.
    return EXIT_UNDECIDED if any(one.outcome in ("coarse", "possible", "none") for one in found.explained) else EXIT_OK


def _write(found: Overview, asked: Questions) -> None:
    from pretrace.files import write_text

    if asked.html:
        from pretrace.report.evaluate import page_of
        from pretrace.report.page import render

        write_text(asked.html, render(page_of(found)))
    if asked.card:
        from pretrace.evaluate.card import card

        last = found.runs[-1]
        write_text(asked.card, card(last, asked.model or last.name))


def _object(found: Overview) -> dict[str, Any]:
    return {
        "runs": [_run(run) for run in found.runs],
        "conventions": [{**_plain(n), "value": n.value, "way": n.way} for n in found.conventions],
        "explained": [{**_plain(one), "value": one.value} for one in found.explained],
        "beside": found.beside,
        "compared": [{**_plain(one), "distinguishable": one.paired.distinguishable} for one in found.compared],
        "held_out": found.held_out,
    }


def _plain(value: Any) -> dict[str, Any]:
    from pretrace.cli.console import plain

    return dict(plain(value))


def _run(run: ScoredRun) -> dict[str, Any]:
    tasks = [
        {"task": t.task, "rows": len(t.used), "rows_in_all": t.n_total, "left_out": [d.doc_id for d in t.faulty],
         "missing": t.missing,
         "max_length": t.max_length, "source": t.source}
        for t in run.tasks
    ]  # fmt: skip
    return {"name": run.name, "step": run.step, "tasks": tasks, "numbers": run.own}


def _lines(found: Overview, asked: Questions) -> Iterator[str]:
    from pretrace.evaluate.against import first_sentence
    from pretrace.evaluate.rederive_words import lines, task_line

    for one in found.explained:
        yield from lines(one)
        yield ""
    if asked.against:
        yield first_sentence(found.beside) + "."
        yield from (f"  {b.sentence()}" for b in found.beside)
        yield ""
    if found.compared:
        yield f"A = {found.runs[0].name}, B = {found.runs[-1].name}, the same rows drawn for both:"
        yield from (f"  {d.sentence()}" for d in found.compared)
        yield ""
    for run in found.runs if not (found.explained or found.compared or asked.against) else ():
        yield run.name + (f": {len(run.printed):,} figures without their rows" if run.printed else "")
        for task in run.tasks:
            yield f"  {task_line(task)}"
            yield from _sure(run, task.task)
    yield from _losses(found)
    for name, path in (("page", asked.html), ("card", asked.card)):
        if path:
            yield f"  {name}: {path}"


def _sure(run: ScoredRun, task: str) -> Iterator[str]:
    from pretrace.evaluate.rederive_words import how_sure

    for number in run.own:
        if number.task == task and number.harness:
            yield "    " + how_sure(number, run.task_of(number).n_total)


def _losses(found: Overview) -> Iterator[str]:
    for loss in found.held_out if not (found.explained or found.compared or found.beside) else ():
        nats, bits = loss.nats_per_token, loss.bits_per_byte
        yield (
            f"  {loss.task}: {nats.value:.4f} nats a token [{nats.low:.4f}, {nats.high:.4f}], {bits.value:.4f} bits a byte "
            f"[{bits.low:.4f}, {bits.high:.4f}] over {loss.n_tokens:,} tokens"
        )


def check(command: str, *, as_json: bool) -> int:
    """Says what is malformed or ignored in a published lm_eval command; exit 1 if anything but remarks."""
    from pretrace.cli.console import print_json, say
    from pretrace.evaluate.command_check import check_command

    found = check_command(command)
    wrong = [finding for finding in found if finding.severity != "info"]
    if as_json:
        print_json({"outcome": "fail" if wrong else "pass", "findings": found})
    else:
        many = "1 argument is" if len(wrong) == 1 else f"{len(wrong)} arguments are"
        say(f"{many} malformed or ignored." if wrong else "Every argument that is checked is read as it is meant.")
        for finding in found:
            say(f"{finding.severity:<8} {finding.code}: {finding.what}")
            say(f"         mend  {finding.mend}")
    return EXIT_FINDING if wrong else EXIT_OK
