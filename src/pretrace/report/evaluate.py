"""The page of an evaluation: figures with their intervals, the conventions behind them, ours beside published ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pretrace.evaluate.against import first_sentence
from pretrace.evaluate.card import card
from pretrace.evaluate.held_out import HeldOut
from pretrace.evaluate.numbers import Number
from pretrace.evaluate.overview import Overview, ScoredRun
from pretrace.evaluate.rederive import Explained
from pretrace.evaluate.rederive_words import how_sure, verdict
from pretrace.evaluate.rederive_words import rows as rows_of
from pretrace.report.evaluate_figures import by_position, context, differences, over_steps, strip
from pretrace.report.page import Cell, Mark, Page, Section, Table, Text

_MARKS: dict[str, Mark] = {"harness": "good", "convention": "good", "coarse": "open", "possible": "open", "none": "bad"}


def page_of(found: Overview) -> Page:
    """The page: one sentence, the picture that shows it, then tables."""
    last = found.runs[-1]
    sections = [*_pictures(found), *([_results(found)] if any(run.own for run in found.runs) else [])]
    sections += [_windows(one) for one in found.explained if one.context]
    if found.beside:
        sections.append(_published(found))
    if found.compared:
        sections.append(_compared(found))
    sections += [section for loss in found.held_out for section in (by_position(loss), _lengths(loss))]
    if found.conventions:
        sections.append(_conventions(found))
    if faults := _faults(found.runs):
        sections.append(faults)
    if last.own:
        sections.append(Text("Model card", card(last, last.name), pre=True, folded=True))
    if found.command:
        sections.append(Text("Command", found.command, pre=True))
    sentence, mark = _verdict(found)
    return Page(f"Evaluation of {_names(found)}", sentence, mark, _lead(found), sections)


def _names(found: Overview) -> str:
    if found.series:
        return f"{len(found.runs)} steps, {found.runs[0].step:,} to {found.runs[-1].step:,}"
    return " and ".join(run.name for run in found.runs)


def _label(run: ScoredRun, found: Overview) -> str:
    return f"step {run.step:,}" if found.series else run.name


def _verdict(found: Overview) -> tuple[str, Mark]:
    if found.explained:
        one = found.explained[0]
        undecided = one.outcome == "none" and one.indistinct
        return verdict(one) + ".", "open" if undecided else _MARKS[one.outcome]
    if found.beside:
        different = any(b.judgement == "different" for b in found.beside)
        return first_sentence(found.beside) + ".", "bad" if different else "open"
    if found.compared and not found.series:
        apart = sum(d.paired.distinguishable for d in found.compared)
        text = f"{apart} of {len(found.compared)} metrics tell {found.runs[0].name} from {found.runs[-1].name}."
        return text, "bad" if apart else "open"
    own = found.runs[-1].own
    return (
        how_sure(own[0], found.runs[-1].task_of(own[0]).n_total) + "." if own else "No row could be scored."
    ), "none"


def _lead(found: Overview) -> str:
    if found.explained:
        return how_sure(found.explained[0].ours, found.explained[0].n_total) + "."
    return "Every figure has its interval: documents are drawn again with replacement; shares have Wilson's interval."


def _pictures(found: Overview) -> list[Section]:
    pictures: list[Section] = [context(one) for one in found.explained if one.context]
    if found.series:
        pictures.append(over_steps(found))
    elif not pictures and found.runs[-1].own:
        pictures.append(strip(found.runs))
    # The picture of what the first sentence says stands first.
    beside = [differences(found.beside)] if found.beside else []
    return [*pictures, *beside] if found.explained else [*beside, *pictures]


def _results(found: Overview) -> Table:
    named = len(found.runs) > 1
    rows = [
        ((_label(run, found),) if named else ()) + _result(run, n)
        for run in found.runs
        for n in run.own
        if n.harness or n.metric == "token_perplexity"
    ]
    columns = ("task", "metric", "value", "standard error", "95% from", "to", "rows", "window", "left out")
    note = "As lm-evaluation-harness makes them (it has no token_perplexity). Shares are of 1."
    return Table("Figures", (("run",) if named else ()) + columns, rows, note, "figures")


def _result(run: ScoredRun, number: Number) -> tuple[Cell, ...]:
    i, task = number.interval, run.task_of(number)
    return (
        number.task, number.metric, i.value, _known(i.stderr), _known(i.low), _known(i.high),
        rows_of(i.n, task.n_total), task.max_length, len(task.faulty),
    )  # fmt: skip


def _percent(share: float) -> float | None:
    return None if math.isnan(share) else round(100 * share, 1)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _conventions(found: Overview) -> Table:
    printing = {id_of(n) for one in found.explained for n in one.matches}
    rows: list[tuple[Cell, ...]] = []
    for n in found.conventions:
        i = n.interval
        basis = "exact" if n.basis == "exact" else f"estimated ({100 * n.exact:.0f}% exact)"
        mark = "yes" if id_of(n) in printing else ""
        rows.append((n.task, n.metric, n.way, i.value, _known(i.low), _known(i.high), basis, mark))
    columns = ("task", "metric", "convention", "value", "95% from", "to", "basis", "prints it")
    note = "The same log-likelihoods under every convention. Intervals: over documents where exact, of this text where estimated."
    return Table("Conventions", columns, rows, note, "conventions")


def id_of(number: Number) -> tuple[str, str, float]:
    """What tells two numbers of one run apart, whatever they are called relative to."""
    return number.task, number.metric, round(number.value, 9)


def _windows(one: Explained) -> Table:
    columns = ("windows", "value", "95% from", "to", "tokens exact, %", "of the gap, %")
    rows = [(at.words, at.value, at.low, at.high, round(100 * at.exact, 1), _percent(at.share)) for at in one.context]
    note = f"Ours is {one.ours.value:.4g}, published {one.published.printed}; the gap is taken on the logarithm."
    return Table(f"{one.task}: context length alone", columns, rows, note, f"{one.task}-windows")


def _published(found: Overview) -> Table:
    steps = ("step",) if any(b.theirs.step is not None for b in found.beside) else ()
    shots = ("examples",) if any(b.theirs.num_fewshot is not None for b in found.beside) else ()
    counted = ("rows",) if any(b.ours.n for b in found.beside) else ()
    last = ("95% from", "to", *counted)
    columns = ("task", "metric", *steps, *shots, "judgement", "ours", "theirs", "difference", *last)
    rows: list[tuple[Cell, ...]] = []
    for b in found.beside:
        which = (*((b.theirs.step,) if steps else ()), *((b.theirs.num_fewshot,) if shots else ()))
        figures = (b.judgement, b.ours.value, b.theirs.value, b.difference, b.low, b.high)
        rows.append((b.task, b.metric, *which, *figures, *((b.ours.n,) if counted else ())))
    note = "The two are taken as independent: on the same rows the true interval is narrower. Perplexities: of their logarithms."
    return Table("Beside published figures", columns, rows, note, "published")


def _compared(found: Overview) -> Table:
    columns = ("task", "metric", "A", "B", "A - B", "95% from", "to", "p", "judgement", "rows")
    rows = []
    for d in found.compared:
        i = d.paired.difference
        said = "distinguishable" if d.paired.distinguishable else "not distinguishable"
        rows.append((d.task, d.metric, d.paired.a.value, d.paired.b.value, i.value, _known(i.low), _known(i.high),
                     _known(d.paired.p), said, d.n))  # fmt: skip
    a, b = _label(found.runs[0], found), _label(found.runs[-1], found)
    note = f"A is {a}, B is {b}; the same documents are drawn for both."
    return Table("Paired difference", columns, rows, note, "paired")


def _lengths(loss: HeldOut) -> Table:
    columns = ("tokens of a document", "documents", "tokens", "nats a token", "95% from", "to", "bits a byte")
    rows = [
        (part.words, part.n_documents, part.n_tokens, part.nats_per_token.value, _known(part.nats_per_token.low),
         _known(part.nats_per_token.high), _known(part.bits_per_byte))
        for part in loss.by_length
    ]  # fmt: skip
    whole = loss.nats_per_token
    note = (
        f"In all {whole.value:.4f} nats a token, {loss.bits_per_byte.value:.4f} bits a byte, {loss.n_tokens:,} tokens."
    )
    return Table(f"{loss.task}: loss by length of document", columns, rows, note, f"{loss.task}-length")


def _faults(runs: Sequence[ScoredRun]) -> Table | None:
    rows = [
        (run.name, task.task, document.doc_id, document.fault or "no finite log-likelihood")
        for run in runs
        for task in run.tasks
        for document in task.faulty
    ]
    rows += [
        (run.name, task.task, i, "missing from the file") for run in runs for task in run.tasks for i in task.missing
    ]
    note = "These rows are in no figure of this page."
    return Table("Rows without a score", ("run", "task", "row", "why"), rows, note, "faults") if rows else None
