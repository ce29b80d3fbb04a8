"""Rows to documents: the requests of one document put together, and what cannot be used named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from numbers import Real
from typing import Any

import numpy as np

from pretrace.evaluate.conventions import COUNTS
from pretrace.evaluate.documents import (
    ChoiceDocument,
    ClozeDocument,
    Document,
    Ints,
    RollingDocument,
    TaskDocuments,
    WrittenDocument,
)
from pretrace.evaluate.rows import Row, Samples


def documents_of(samples: Samples, source: str = "") -> TaskDocuments:
    """The documents of one task.

    `about` of the samples may say `delimiter`, what stands between a question and a choice (" " if it does not), and `means`, the
    metrics whose figure is the mean over documents.
    """
    ordered = sorted(samples.rows, key=lambda row: (row.doc_id, row.idx))
    grouped = [list(rows) for _, rows in groupby(ordered, key=lambda row: row.doc_id)]
    twice = any(_doubled(rows) for rows in grouped)
    how = _How(str(samples.about.get("delimiter", " ")), tuple(samples.about.get("means", MEANS)), twice)
    documents = tuple(_document(rows, how) for rows in grouped)
    return TaskDocuments(
        task=str(samples.about.get("task") or (ordered[0].task if ordered else "")),
        documents=documents,
        max_length=_max_length(samples.about),
        n_total=_total(samples.about),
        source=source,
        checkpoint=str(_of_checkpoint(samples.about, "digest") or ""),
        step=_of_checkpoint(samples.about, "step"),
        settings=_settings(samples.about),
    )


@dataclass(frozen=True, slots=True)
class _How:
    delimiter: str
    means: tuple[str, ...]
    twice: bool  # whether the choices stand a second time, with no question before them


MEANS = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match")  # of files that do not say


def _judged(row: Row, how: _How) -> dict[str, float]:
    found = {name: row.metrics.get(name) for name in how.means}
    return {name: float(value) for name, value in found.items() if isinstance(value, Real) and math.isfinite(value)}


def averaged(rows: Iterable[Row], results: Mapping[str, Any]) -> tuple[str, ...]:
    """The metrics of `results` that are the mean of what stands in the rows; a perplexity, or a correlation, is none."""
    made = [row.metrics for row in rows if row.metrics]
    found = []
    for name, value in results.items():
        values = [float(one) for metrics in made if isinstance(one := metrics.get(name), Real)]
        if values and len(values) == len(made) and isinstance(value, Real):
            mean = math.fsum(values) / len(values)
            if math.isclose(mean, float(value), rel_tol=1e-9, abs_tol=1e-12):
                found.append(name)
    return tuple(found)


# Settings that move a log-likelihood; the length of windows has a field of its own.
MOVING = ("bos", "prefix", "truncation", "dtype", "fewshot", "through")


def _settings(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = about.get("settings")
    return tuple((name, str(found[name])) for name in MOVING if name in found) if isinstance(found, Mapping) else ()


def _of_checkpoint(about: Mapping[str, Any], key: str) -> Any:
    found = about.get("checkpoint")
    return found.get(key) if isinstance(found, Mapping) else None


def _max_length(about: Mapping[str, Any]) -> int | None:
    settings = about.get("settings")
    found = about.get("max_length", settings.get("max_length") if isinstance(settings, Mapping) else None)
    return int(found) if isinstance(found, int) else None


def _total(about: Mapping[str, Any]) -> int | None:
    data = about.get("data")
    found = data.get("n_documents") if isinstance(data, Mapping) else None
    return int(found) if isinstance(found, int) else None


def _document(rows: list[Row], how: _How) -> Document:
    first = rows[0]
    fault = "; ".join(dict.fromkeys(f"{f.code} {f.words}".strip() for row in rows for f in row.faults if f.fatal))
    if first.kind == "choice":
        return _choice(rows, how, fault)
    if len(rows) > 1:
        fault = fault or f"{len(rows)} rows where one was expected"
    if first.kind == "rolling":
        return _rolling(first, how, fault)
    if first.kind == "generate":
        return WrittenDocument(first.doc_id, first.context, _judged(first, how), fault)
    n_tokens = len(first.tokens) or None
    return ClozeDocument(
        first.doc_id,
        first.loglikelihood,
        bool(first.greedy),
        first.continuation,
        n_tokens,
        _unknown(first, fault),
        _judged(first, how),
    )


def _unknown(row: Row, fault: str) -> str:
    if fault:
        return fault
    if not row.continuation.strip():
        return "empty-continuation nothing but a blank is scored"
    return "" if row.greedy is not None else "not said whether the model's first choice"


def _doubled(rows: list[Row]) -> bool:
    """acc_mutual_info adds the same choices once more with no question before them."""
    half = len(rows) // 2
    second = rows[half:]
    alike = [row.continuation for row in rows[:half]] == [row.continuation for row in second]
    return rows[0].kind == "choice" and alike and rows[0].context != "" and all(row.context == "" for row in second)


def _choice(rows: list[Row], how: _How, fault: str) -> ChoiceDocument:
    half = len(rows) // 2
    asked, alone = (rows[:half], rows[half:]) if how.twice and len(rows) % 2 == 0 else (rows, [])
    gaps = [row.idx for row in rows] != list(range(len(rows)))
    choices = tuple(row.continuation.removeprefix(how.delimiter) for row in asked)
    gold = _gold(rows[0].gold, choices) if len(set(choices)) > 1 else _gold_of_contexts(rows)
    counted = all(len(row.tokens) for row in asked)
    return ChoiceDocument(
        doc_id=rows[0].doc_id,
        log_likelihoods=tuple(float(row.loglikelihood) for row in asked),
        choices=choices,
        gold=gold,
        n_tokens=tuple(len(row.tokens) for row in asked) if counted else None,
        alone=tuple(float(row.loglikelihood) for row in alone) or None,
        fault=fault or _choice_fault(choices, gaps, gold),
        judged=_judged(rows[0], how),
    )


def _choice_fault(choices: tuple[str, ...], gaps: bool, gold: tuple[int, ...]) -> str:
    if gaps:
        return "rows of some choices are missing"
    if any(not choice.strip() for choice in choices):
        # Its log-likelihood is that of the joining blank, and a division by its length is one by zero.
        return "empty-continuation a choice without text"
    return "" if gold else "no right choice is given"


def _gold(gold: Any, choices: tuple[str, ...]) -> tuple[int, ...]:
    found = [_index(one, choices) for one in (gold if isinstance(gold, (list, tuple)) else [gold])]
    return tuple(i for i in found if i is not None and 0 <= i < len(choices))


def _gold_of_contexts(rows: list[Row]) -> tuple[int, ...]:
    """Where the options stand in the contexts (winogrande), the file says only whether the answer was right."""
    right = rows[0].metrics.get("acc")
    if isinstance(rows[0].gold, int) or right is None or len(rows) != 2:
        return _gold(rows[0].gold, ("",) * len(rows))
    best = max(range(2), key=lambda i: rows[i].loglikelihood)
    return (best if float(right) == 1.0 else 1 - best,)


def _index(gold: Any, choices: tuple[str, ...]) -> int | None:
    if isinstance(gold, bool) or gold is None:
        return None
    if isinstance(gold, int):
        return gold
    text = str(gold).removeprefix(" ")
    if text in choices:
        return choices.index(text)
    return int(text) if text.isdigit() else None


def _page(row: Row) -> str | None:
    """The text whose words and bytes the harness divides by: of the document's, the one that has as many of both."""
    texts = [row.document.get("page"), row.continuation, *row.document.values()]
    counts = {"word_perplexity": COUNTS["words of the page"], "byte_perplexity": COUNTS["bytes of the page"]}
    pairs = {metric: row.metrics.get(metric) for metric in counts}
    wanted = [(counts[metric], pair[1]) for metric, pair in pairs.items() if isinstance(pair, (list, tuple))]
    return next((text for text in texts if isinstance(text, str) and all(f(text) == n for f, n in wanted)), None)


def _rolling(row: Row, how: _How, fault: str) -> RollingDocument:
    known = len(row.logprobs) > 0
    return RollingDocument(
        doc_id=row.doc_id,
        log_likelihood=row.loglikelihood,
        text=row.continuation,
        page=_page(row),
        n_tokens=len(row.logprobs) if known else None,
        tokens=row.logprobs.astype(np.float64) if known else None,
        ends=_ends(row) if known and len(row.starts) == len(row.logprobs) else None,
        seen=row.seen.astype(np.int64) if known and len(row.seen) == len(row.logprobs) else None,
        ids=row.tokens if known and len(row.tokens) == len(row.logprobs) else None,
        fault=fault,
        judged=_judged(row, how),
    )


def _ends(row: Row) -> Ints:
    return np.append(row.starts[1:], len(row.continuation)).astype(np.int64)
