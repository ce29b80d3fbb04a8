"""Two checkpoints on the same rows: the paired difference of every metric, and whether anything can be said at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.conventions import ChoiceLength, ClozeMetric, TextConvention, cloze, hits, losses, measured
from pretrace.evaluate.documents import (
    ChoiceDocument,
    ClozeDocument,
    Document,
    RollingDocument,
    TaskDocuments,
    WrittenDocument,
)
from pretrace.evaluate.intervals import Ratio, mean
from pretrace.evaluate.paired import PairedDifference, paired_all

_CHOICES: dict[str, ChoiceLength] = {"acc": "none", "acc_norm": "characters", "acc_bytes": "bytes"}
_CLOZES: tuple[ClozeMetric, ...] = ("acc", "perplexity")
_TEXTS = (
    TextConvention("word", "words of the page", "perplexity"),
    TextConvention("byte", "bytes of the page", "perplexity"),
    TextConvention("byte", "bytes of the page", "bits"),
    TextConvention("token", "tokens", "perplexity"),
)


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A - B of one metric on the documents that both could score. `left_out`: documents that only one has, or none could."""

    task: str
    metric: str
    n: int
    n_total: int | None
    left_out: int
    paired: PairedDifference

    @property
    def share(self) -> bool:
        """Whether the metric is a share of 1, printed in points."""
        return self.metric.startswith(("acc", "exact_match"))

    def sentence(self) -> str:
        """How sure, then what."""
        d, of = self.paired, f" of {self.n_total:,}" if self.n_total not in (None, self.n) else ""
        scale, unit = (100.0, " points") if self.share else (1.0, "")
        a, b, i = d.a, d.b, d.difference
        name = f"{self.task} {self.metric}"
        if math.isnan(i.low):
            return f"{name}: {self.n} row cannot say how sure a difference is"
        sure = f"standard errors {scale * a.stderr:.3g} and {scale * b.stderr:.3g}{unit}"
        sure += f", of the difference {scale * i.stderr:.3g}"
        said = "distinguishable" if d.distinguishable else "not distinguishable"
        return (
            f"{name}: {said} on {self.n:,}{of} rows ({sure}): A {scale * a.value:.4g}, B {scale * b.value:.4g}, "
            f"difference {scale * i.value:+.3g} [{scale * i.low:+.3g}, {scale * i.high:+.3g}], p = {d.p:.2g}"
        )


def compare(a: Sequence[TaskDocuments], b: Sequence[TaskDocuments]) -> tuple[MetricDifference, ...]:
    """Every metric of every task that both have, paired by document.

    Raises
    ------
    PretraceError
        If no task is in both, or two rows of the same number hold other texts.
    """
    others = {task.task: task for task in b}
    found = [d for task in a if task.task in others for d in _task(task, others[task.task])]
    if not found:
        raise PretraceError(
            "no task has rows that both could score",
            f"A: {_names(a)}; B: {_names(b)}",
            "score both on the same rows of one task",
        )
    return tuple(found)


def _names(tasks: Sequence[TaskDocuments]) -> str:
    return ", ".join(task.task for task in tasks) or "none"


def _task(a: TaskDocuments, b: TaskDocuments) -> list[MetricDifference]:
    theirs = {d.doc_id: d for d in b.documents}
    pairs = [(d, theirs[d.doc_id]) for d in a.documents if d.doc_id in theirs]
    for mine, other in pairs:
        _same_text(a.task, mine, other)
    pairs = [(x, y) for x, y in pairs if x.usable and y.usable]
    left_out = len({d.doc_id for d in a.documents} | set(theirs)) - len(pairs)
    n_total = a.n_total if a.n_total == b.n_total else None
    ours, others = [x for x, _ in pairs], [y for _, y in pairs]
    first, second = ratios(ours), ratios(others)
    common = [m for m in first if m in second and (m != "token_perplexity" or _same_tokens(ours, others))]
    found = paired_all([(first[metric], second[metric]) for metric in common])
    return [
        MetricDifference(a.task, metric, len(pairs), n_total, left_out, difference)
        for metric, difference in zip(common, found, strict=True)
    ]


def _same_tokens(ours: Sequence[Document], others: Sequence[Document]) -> bool:
    """Whether both cut the texts into as many tokens each: else a token of the one is no measure of the other's."""
    return [getattr(d, "n_tokens", None) for d in ours] == [getattr(d, "n_tokens", None) for d in others]


def _same_text(task: str, a: Document, b: Document) -> None:
    if _text(a) != _text(b):
        raise PretraceError(
            f"row {a.doc_id} of {task} has another text in A than in B",
            task,
            "score both on the same rows: the data or the task's version differ",
        )


def _text(document: Document) -> object:
    if isinstance(document, ChoiceDocument):
        return document.choices
    if isinstance(document, WrittenDocument):
        return document.prompt
    return document.target if isinstance(document, ClozeDocument) else document.text


def ratios(documents: Sequence[Document]) -> dict[str, Ratio]:
    """The harness's metrics of documents of one kind, by name."""
    choices = [d for d in documents if isinstance(d, ChoiceDocument)]
    clozes = [d for d in documents if isinstance(d, ClozeDocument)]
    texts = [d for d in documents if isinstance(d, RollingDocument)]
    found: dict[str, Ratio] = {}
    for name, length in _CHOICES.items():
        right = hits(choices, length) if choices else None
        if right is not None:
            found[name] = mean(right)
    for metric in _CLOZES if clozes else ():
        ratio = cloze(clozes, metric)
        if ratio is not None:
            found[metric] = ratio
    for convention in _TEXTS if texts else ():
        if convention.unit != "token" or all(d.n_tokens is not None for d in texts):
            ratio = measured(texts, convention, losses(texts, convention))
            if not np.isnan(ratio.below).any():
                found[convention.metric] = ratio
    names = dict.fromkeys(name for d in documents for name in d.judged if name not in found)
    for name in names:
        if all(name in d.judged for d in documents):
            found[name] = mean([d.judged[name] for d in documents])
    return found
