"""Every number of a task under every convention, each with its interval, from documents that were scored once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pretrace.evaluate.context import Cut, Derived, derive, fit
from pretrace.evaluate.conventions import (
    CHOICE_LENGTHS,
    ChoiceLength,
    ClozeMetric,
    TextConvention,
    belows,
    cloze,
    hits,
    losses,
    measured,
    text_conventions,
    values,
)
from pretrace.evaluate.documents import (
    ChoiceDocument,
    ClozeDocument,
    Floats,
    RollingDocument,
    TaskDocuments,
    of_kind,
)
from pretrace.evaluate.intervals import Interval, Ratio, interval, intervals, mean, proportion

Family = Literal[
    "accuracy", "perplexity", "nats", "bits", "score"
]  # score: a mean of what the harness made of each document
# exact: made of the log-likelihoods as they are. estimated: other windows, moved along the context curve.
Basis = Literal["exact", "estimated"]
HARNESS_METRICS = (
    "acc", "acc_norm", "acc_bytes", "acc_mutual_info", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte",
)  # fmt: skip
SHORTEST = 32  # windows below this are nobody's setting


@dataclass(frozen=True, slots=True)
class Number:
    """One number. `departures`: what differs from the harness's way for its metric. `interval`: over documents where exact;
    where estimated, of this very text, from the context curve. `exact`: share of tokens that are not estimated.
    """

    task: str
    metric: str
    family: Family
    interval: Interval
    departures: tuple[str, ...] = ()
    basis: Basis = "exact"
    exact: float = 1.0
    cut: Cut | None = None  # other windows than those scored
    judged: bool = False  # the harness's own value of each document, averaged

    @property
    def value(self) -> float:
        """The number itself."""
        return self.interval.value

    @property
    def words(self) -> str:
        """The metric, and what differs from the harness's way."""
        return f"{self.metric} {self.way}" if not self.departures else f"{self.metric}; {self.way}"

    @property
    def way(self) -> str:
        """What differs from the harness's way, or that nothing does; of metrics it lacks, that they are plain ratios."""
        return "; ".join(self.departures) or ("as the harness" if self.harness else "over all documents together")

    @property
    def harness(self) -> bool:
        """Whether lm-evaluation-harness has such a metric."""
        return self.judged or self.metric in HARNESS_METRICS


def numbers(task: TaskDocuments, *, windows: bool = True) -> tuple[Number, ...]:
    """All numbers of a task, the harness's own first; `windows`: those of other windows too, where they can be derived."""
    found = [*_choices(task), *_clozes(task), *_texts(task)]
    found += _judged(task, {n.metric for n in found if not n.departures})
    if windows:
        found += other_windows(task, (_HARNESS_WORDS, _HARNESS_TOKENS, _HARNESS_BITS))
    # A text without blanks is one word: its word perplexity is beyond a float, and no number (the harness stops there).
    return tuple(n for n in found if math.isfinite(n.value))


_HARNESS_WORDS = TextConvention("word", "words of the page", "perplexity")
_HARNESS_TOKENS = TextConvention("token", "tokens", "perplexity")
_HARNESS_BITS = TextConvention("byte", "bytes of the page", "bits")

_CHOICE_METRICS: dict[ChoiceLength, tuple[str, tuple[str, ...]]] = {
    "none": ("acc", ()),
    "characters": ("acc_norm", ()),
    "bytes": ("acc_bytes", ()),
    "tokens": ("acc_norm", ("divided by tokens",)),
    "characters and the blank": ("acc_norm", ("the blank before a choice counted",)),
    "without the question": ("acc_mutual_info", ()),
}


def _choices(task: TaskDocuments) -> Iterator[Number]:
    documents = of_kind(task.documents, ChoiceDocument)
    for length in CHOICE_LENGTHS if documents else ():
        right = hits(documents, length)
        if right is not None:
            metric, departures = _CHOICE_METRICS[length]
            yield Number(task.task, metric, "accuracy", proportion(right), departures)


def _judged(task: TaskDocuments, known: set[str]) -> Iterator[Number]:
    """What only the harness can make of a document (exact_match of a written text): its mean."""
    names = dict.fromkeys(name for d in task.used for name in d.judged if name not in known)
    for name in names:
        values = np.array([d.judged.get(name, math.nan) for d in task.used])
        if np.isnan(values).any():
            continue
        share = bool(np.isin(values, (0.0, 1.0)).all())
        found = proportion(values) if share else interval(mean(values))
        yield Number(task.task, name, "accuracy" if share else "score", found, judged=True)


_CLOZE: dict[ClozeMetric, tuple[Family, tuple[str, ...]]] = {
    "acc": ("accuracy", ()),
    "perplexity": ("perplexity", ()),
    "token_perplexity": ("perplexity", ("divided by the tokens of the continuations",)),
    "byte_perplexity": ("perplexity", ("divided by the bytes of the continuations",)),
    "nats_per_token": ("nats", ("divided by the tokens of the continuations",)),
}


def _clozes(task: TaskDocuments) -> Iterator[Number]:
    documents = of_kind(task.documents, ClozeDocument)
    if not documents:
        return
    yield Number(task.task, "acc", "accuracy", proportion([float(d.greedy) for d in documents]))
    metrics: list[ClozeMetric] = [m for m in _CLOZE if m != "acc"]
    ratios = {m: r for m in metrics if (r := cloze(documents, m)) is not None}
    for (metric, _), found in zip(ratios.items(), intervals(list(ratios.values())), strict=True):
        family, departures = _CLOZE[metric]
        yield Number(task.task, metric, family, found, departures)


def _texts(task: TaskDocuments) -> list[Number]:
    documents = of_kind(task.documents, RollingDocument)
    kept: list[tuple[TextConvention, Ratio]] = []
    for convention in text_conventions() if documents else ():
        nats = losses(documents, convention)
        if not np.isnan(nats).any():
            ratio = measured(documents, convention, nats)
            if not np.isnan(ratio.below).any() and (ratio.below > 0).all():
                kept.append((convention, ratio))
    seen: dict[tuple[str, float], Number] = {}
    for (convention, _), found in zip(kept, intervals([r for _, r in kept]), strict=True):
        number = Number(task.task, convention.metric, convention.form, found, convention.departures)
        # Conventions that cannot be told apart on these texts (no white space at the end, say) are one.
        seen.setdefault((convention.metric, round(found.value, 12)), number)
    return list(seen.values())


def cuts_of(task: TaskDocuments) -> tuple[Cut, ...]:
    """The other windows that are looked at: powers of two below the scored length, disjoint and rolling; and one stream."""
    longest = task.max_length or max(
        (int(d.seen.max()) for d in of_kind(task.documents, RollingDocument) if d.seen is not None and len(d.seen)),
        default=0,
    )
    lengths = [1 << k for k in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 1 << k < longest]
    rolling = [Cut(n, n // part) for n in (*lengths, longest) if n >= SHORTEST for part in (2, 4)]
    rolling.append(Cut(longest, 1))
    return (*(Cut(n) for n in reversed(lengths)), *reversed(rolling), Cut(longest, joined=True)) if longest else ()


def other_windows(task: TaskDocuments, conventions: Sequence[TextConvention]) -> list[Number]:
    """The numbers under other windows; none where only sums were logged, or where the curve does not reach."""
    documents = of_kind(task.documents, RollingDocument)
    if not documents or any(d.tokens is None or d.seen is None or not len(d.tokens) for d in documents):
        return []
    curve = fit(documents)
    kept = [slice(0, len(d.seen)) for d in documents if d.seen is not None]
    below = {convention: belows(documents, convention) for convention in conventions}
    found = []
    for cut in cuts_of(task):
        derived = derive(documents, cut, curve, kept)
        if derived is not None:
            found += [_under(task, cut, derived, convention, below[convention]) for convention in conventions]
    return found


def _under(task: TaskDocuments, cut: Cut, derived: Derived, convention: TextConvention, below: Floats) -> Number:
    value = float(values(convention, below, derived.nats[None])[0])
    drawn = values(convention, below, derived.drawn)
    low, high = np.quantile(drawn, [0.025, 0.975])
    basis: Basis = "exact" if derived.exact == 1.0 else "estimated"
    found = Interval(value, float(drawn.std(ddof=1)), float(low), float(high), len(below))
    return Number(task.task, convention.metric, convention.form, found, (cut.words,), basis, derived.exact, cut)
