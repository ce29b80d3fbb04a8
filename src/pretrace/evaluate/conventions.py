"""The choices that change a printed number while the model, the text and the log-likelihoods stay the same.

A convention is one value; the number it gives is a ratio over documents (see `intervals.Ratio`), so that every convention
has an interval. `as_harness` names what lm-evaluation-harness does; the others are what papers and other programs do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from pretrace.evaluate.documents import ChoiceDocument, ClozeDocument, Floats, RollingDocument
from pretrace.evaluate.intervals import Ratio, identity, mean

# What the log-likelihood of a choice is divided by before the largest is taken.
ChoiceLength = Literal["none", "characters", "bytes", "tokens", "characters and the blank", "without the question"]
CHOICE_LENGTHS: tuple[ChoiceLength, ...] = (
    "none", "characters", "bytes", "tokens", "characters and the blank", "without the question",
)  # fmt: skip
# What the log-likelihood of a text is divided by. "page" is the text before the task changed it (WikiText detokenises).
# Words: the harness splits at white space and counts the empty words at both ends; str.split does not.
Unit = Literal["word", "byte", "character", "token"]
Below = Literal[
    "words of the page", "words of the page, no empty ones", "words of the scored text", "bytes of the page",
    "bytes of the scored text", "characters of the scored text", "tokens",
]  # fmt: skip
BELOW: dict[Unit, tuple[Below, ...]] = {
    "word": ("words of the page", "words of the page, no empty ones", "words of the scored text"),
    "token": ("tokens",),
    "byte": ("bytes of the page", "bytes of the scored text"),
    "character": ("characters of the scored text",),
}
Form = Literal["perplexity", "nats", "bits"]
Average = Literal["joined", "mean of documents", "exp of the mean of documents"]
AVERAGES: tuple[Average, ...] = ("joined", "mean of documents", "exp of the mean of documents")


@dataclass(frozen=True, slots=True)
class TextConvention:
    """How a rolling log-likelihood becomes a number.

    `average`: one ratio over all documents, the mean of the documents' own numbers, or the exponential of the mean of their
    losses; `first`: whether the first token, which only a begin token stands before, counts; `newline`: whether white
    space at the end of the text counts, above and below.
    """

    unit: Unit
    below: Below
    form: Form
    average: Average = "joined"
    first: bool = True
    newline: bool = True

    @property
    def metric(self) -> str:
        """The harness's name where it has one."""
        if self.form == "perplexity":
            return f"{self.unit}_perplexity"
        return f"{self.form}_per_{self.unit}"

    @property
    def departures(self) -> tuple[str, ...]:
        """What differs from the harness's way for this metric, in words."""
        found = []
        if self.below != BELOW[self.unit][0]:
            found.append(f"divided by {self.below}")
        if self.average != "joined":
            found.append("document by document: " + self.average)
        if not self.first:
            found.append("the first token of each text not counted")
        if not self.newline:
            found.append("white space at the end left out")
        return tuple(found)


def text_conventions() -> tuple[TextConvention, ...]:
    """Every convention for whole texts, the harness's own first."""
    forms: tuple[Form, ...] = ("perplexity", "nats", "bits")
    flags = (True, False)
    found = [
        TextConvention(unit, below, form, average, first, newline)
        for unit in BELOW
        for form, below, average, first, newline in product(forms, BELOW[unit], AVERAGES, flags, flags)
        if not (form != "perplexity" and average == "exp of the mean of documents")
        and not (form == "nats" and unit in ("word", "byte", "character"))
    ]
    return tuple(sorted(found, key=lambda c: len(c.departures)))


def measured(documents: Sequence[RollingDocument], convention: TextConvention, nats: Floats) -> Ratio:
    """The ratio that a convention makes of the losses `nats` [n] of the documents (see `losses`)."""
    below = belows(documents, convention)
    per = _per(convention)
    if convention.average == "joined":
        return Ratio(nats, below, per)
    with np.errstate(divide="ignore", invalid="ignore"):  # a text of one token has none behind its first
        each = nats / below
    if convention.average == "mean of documents":
        return mean(per(each))
    return Ratio(each, np.ones_like(below), per)


def values(convention: TextConvention, below: Floats, nats: Floats) -> Floats:
    """`measured(...).value()` for many losses of the same documents; nats [B, n] -> [B]."""
    per = _per(convention)
    if convention.average == "joined":
        return per(nats.sum(1) / below.sum())
    if convention.average == "mean of documents":
        return np.asarray(per(nats / below).mean(1))
    return per((nats / below).mean(1))


def belows(documents: Sequence[RollingDocument], convention: TextConvention) -> Floats:
    """What each document adds below the line; float64 [n]."""
    return np.array([count(d, convention.below, convention) for d in documents], dtype=np.float64)


def _per(convention: TextConvention) -> Callable[[Floats], Floats]:
    return {"perplexity": _exp, "bits": _bits, "nats": identity}[convention.form]


def _exp(nats: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(nats))


def _bits(nats: Floats) -> Floats:
    return nats / math.log(2)


def losses(documents: Sequence[RollingDocument], convention: TextConvention) -> Floats:
    """Minus the log-likelihood in nats of each document under `first` and `newline`, from the tokens as scored.

    NaN where a document has no single tokens and the convention needs them.
    """
    return np.array([_loss(d, convention) for d in documents], dtype=np.float64)


def _loss(document: RollingDocument, convention: TextConvention) -> float:
    if convention.first and (convention.newline or not _tail(document)):
        return -document.log_likelihood
    kept = kept_tokens(document, convention)
    if document.tokens is None or kept is None:
        return math.nan
    return -float(document.tokens[kept].sum())


def kept_tokens(document: RollingDocument, convention: TextConvention) -> slice | None:
    """The tokens that count; None where it cannot be told which (no offsets, or a token spans the last word's end)."""
    if document.n_tokens is None:
        return None
    start = 0 if convention.first else 1
    if convention.newline or not _tail(document):
        return slice(start, document.n_tokens)
    if document.ends is None:
        return None
    end = len(document.text.rstrip())
    stop = int(np.searchsorted(document.ends, end, side="left")) + 1
    return slice(start, stop) if stop <= len(document.ends) and document.ends[stop - 1] == end else None


def _tail(document: RollingDocument) -> bool:
    return document.text != document.text.rstrip()


def count(document: RollingDocument, below: Below, convention: TextConvention) -> float:
    """What one document adds below the line; NaN where it is not known."""
    if below == "tokens":
        kept = kept_tokens(document, convention)
        return math.nan if kept is None else float(kept.stop - kept.start)
    text = document.page if below.endswith("page") or "page," in below else document.text
    if text is None:
        return math.nan
    text = text if convention.newline else text.rstrip()
    return float(COUNTS[below](text))


def _split(text: str) -> int:
    return len(re.split(r"\s+", text))


COUNTS: dict[Below, Callable[[str], int]] = {
    "words of the page": _split,
    "words of the page, no empty ones": lambda text: len(text.split()),
    "words of the scored text": _split,
    "bytes of the page": lambda text: len(text.encode()),
    "bytes of the scored text": lambda text: len(text.encode()),
    "characters of the scored text": len,
}


def chosen(document: ChoiceDocument, length: ChoiceLength) -> int | None:
    """The choice with the largest log-likelihood after division; the first of equal ones (numpy's argmax, the harness's)."""
    scores = np.asarray(document.log_likelihoods, dtype=np.float64)
    if length == "without the question":
        return None if document.alone is None else int(np.argmax(scores - np.asarray(document.alone)))
    if len(set(document.choices)) == 1 and len(document.choices) > 1 and length != "none":
        return None  # the options stand in the contexts (winogrande): what the harness divides by is not in the rows
    lengths = _lengths(document, length)
    return None if lengths is None else int(np.argmax(scores / lengths))


def _lengths(document: ChoiceDocument, length: ChoiceLength) -> Floats | None:
    if length == "none":
        return np.ones(len(document.choices))
    if length == "tokens":
        return None if document.n_tokens is None else np.asarray(document.n_tokens, dtype=np.float64)
    size: Callable[[str], int] = {
        "characters": len,
        "bytes": lambda text: len(text.encode()),
        "characters and the blank": lambda text: len(text) + 1,
    }[length]
    # An empty choice is a fault that the reader names; here it only must not divide by zero.
    return np.array([max(size(choice), 1) for choice in document.choices], dtype=np.float64)


# What the harness has judged itself is taken from it.
JUDGED: dict[ChoiceLength, str] = {
    "none": "acc", "characters": "acc_norm", "bytes": "acc_bytes", "without the question": "acc_mutual_info",
}  # fmt: skip


def hits(documents: Sequence[ChoiceDocument], length: ChoiceLength) -> Floats | None:
    """1 where the chosen one is right, else 0; None where the length is not known for every document."""
    metric = JUDGED.get(length)
    if metric is not None and all(metric in d.judged for d in documents):
        return np.array([d.judged[metric] for d in documents])
    picks = [chosen(d, length) for d in documents]
    if any(pick is None for pick in picks):
        return None
    return np.array([float(pick in d.gold) for pick, d in zip(picks, documents, strict=True)])


ClozeMetric = Literal["acc", "perplexity", "token_perplexity", "byte_perplexity", "nats_per_token"]


def cloze(documents: Sequence[ClozeDocument], metric: ClozeMetric) -> Ratio | None:
    """The harness's `perplexity` has one continuation below the line, however many tokens it has."""
    if metric == "acc":
        return mean([float(d.greedy) for d in documents])
    nats = np.array([-d.log_likelihood for d in documents])
    if metric == "perplexity":
        return Ratio(nats, np.ones_like(nats), _exp)
    if metric == "byte_perplexity":
        return Ratio(nats, np.array([float(len(d.target.encode())) for d in documents]), _exp)
    if any(d.n_tokens is None for d in documents):
        return None
    tokens = np.array([float(d.n_tokens or 0) for d in documents])
    return Ratio(nats, tokens, _exp if metric == "token_perplexity" else identity)
