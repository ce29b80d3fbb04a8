"""Rows to documents: the requests of one document put together, and what cannot be used named."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from pretrace.evaluate.documents import ChoiceDocument, ClozeDocument, Document, Ints, RollingDocument, TaskDocuments
from pretrace.evaluate.rows import Row, Samples


def documents_of(samples: Samples, source: str = "") -> TaskDocuments:
    """The documents of one task. Rows of kind `generate` have no log-likelihood: there is no document of them."""
    scored = [row for row in samples.rows if row.kind != "generate"]
    ordered = sorted(scored, key=lambda row: (row.doc_id, row.idx))
    documents = tuple(_document(list(rows)) for _, rows in groupby(ordered, key=lambda row: row.doc_id))
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


def _document(rows: list[Row]) -> Document:
    first = rows[0]
    fault = "; ".join(dict.fromkeys(f"{f.code} {f.words}".strip() for row in rows for f in row.faults if f.fatal))
    if first.kind == "choice":
        return _choice(rows, fault)
    if len(rows) > 1:
        fault = fault or f"{len(rows)} rows where one was expected"
    if first.kind == "rolling":
        return _rolling(first, fault)
    n_tokens = len(first.tokens) or None
    return ClozeDocument(
        first.doc_id, first.loglikelihood, bool(first.greedy), first.continuation, n_tokens, _unknown(first, fault)
    )


def _unknown(row: Row, fault: str) -> str:
    if fault:
        return fault
    if not row.continuation.strip():
        return "empty-continuation nothing but a blank is scored"
    return "" if row.greedy is not None else "not said whether the model's first choice"


def _choice(rows: list[Row], fault: str) -> ChoiceDocument:
    half = len(rows) // 2
    # acc_mutual_info adds the same choices once more with no question before them.
    twice = len(rows) % 2 == 0 and half > 0 and all(r.context == "" for r in rows[half:]) and rows[0].context != ""
    asked, alone = (rows[:half], rows[half:]) if twice else (rows, [])
    gaps = [row.idx for row in rows] != list(range(len(rows)))
    choices = tuple(row.continuation.removeprefix(" ") for row in asked)
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


def _rolling(row: Row, fault: str) -> RollingDocument:
    known = len(row.logprobs) > 0
    page = row.document.get("page") if isinstance(row.document, Mapping) else None
    return RollingDocument(
        doc_id=row.doc_id,
        log_likelihood=row.loglikelihood,
        text=row.continuation,
        page=page if isinstance(page, str) else row.continuation,
        n_tokens=len(row.logprobs) if known else None,
        tokens=row.logprobs.astype(np.float64) if known else None,
        ends=_ends(row) if known and len(row.starts) == len(row.logprobs) else None,
        seen=row.seen.astype(np.int64) if known and len(row.seen) == len(row.logprobs) else None,
        ids=row.tokens if known and len(row.tokens) == len(row.logprobs) else None,
        fault=fault,
    )


def _ends(row: Row) -> Ints:
    return np.append(row.starts[1:], len(row.continuation)).astype(np.int64)
