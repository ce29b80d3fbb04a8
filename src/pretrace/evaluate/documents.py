"""What was scored, a document at a time: the values from which every number of an evaluation is computed.

A document is what a task counts as one: a question with its choices, a text with a last word to guess, an article. The
numbers of a task are functions of these values alone, so a convention can be changed after the model has run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChoiceDocument:
    """A question: the log-likelihood in nats of every choice, and the right one (or several).

    `choices` are the texts as the task writes them, without the delimiter that joins them to the question; `n_tokens` is None
    where the file does not say it; `alone` holds the log-likelihood of each choice without the question, where scored.
    `judged` (here and below): the harness's own metrics of the document, as far as its figure is their mean.
    """

    doc_id: int
    log_likelihoods: tuple[float, ...]
    choices: tuple[str, ...]
    gold: tuple[int, ...]
    n_tokens: tuple[int, ...] | None = None
    alone: tuple[float, ...] | None = None
    fault: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether numbers may be made of it."""
        return not self.fault and bool(self.gold) and all(math.isfinite(x) for x in self.log_likelihoods)


@dataclass(frozen=True, slots=True)
class ClozeDocument:
    """One continuation: its log-likelihood in nats, and whether every token of it was the model's first choice."""

    doc_id: int
    log_likelihood: float
    greedy: bool
    target: str
    n_tokens: int | None = None
    fault: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether numbers may be made of it."""
        return not self.fault and math.isfinite(self.log_likelihood)


@dataclass(frozen=True, slots=True)
class RollingDocument:
    """A whole text: its log-likelihood in nats, token by token where known.

    `text` was scored; `page` is what the task counts words and bytes in (WikiText counts them before detokenising), None where
    no text of the row has the words and bytes that the harness divides by.
    `tokens` float64 [N] are the log-likelihoods; `ids` int64 [N]; `ends` int64 [N] where each
    token ends in `text`, in characters; `seen` int64 [N] how many inputs each token was predicted from, a begin token counted.
    """

    doc_id: int
    log_likelihood: float
    text: str
    page: str | None
    n_tokens: int | None = None
    tokens: Floats | None = None
    ends: Ints | None = None
    seen: Ints | None = None
    ids: Ints | None = None
    fault: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether numbers may be made of it."""
        return not self.fault and math.isfinite(self.log_likelihood)


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A text that the model wrote after `prompt`: there is no log-likelihood, only what the harness made of it."""

    doc_id: int
    prompt: str
    judged: Mapping[str, float]
    fault: str = ""

    @property
    def usable(self) -> bool:
        """Whether numbers may be made of it."""
        return not self.fault


Document = ChoiceDocument | ClozeDocument | RollingDocument | WrittenDocument
D = TypeVar("D", ChoiceDocument, ClozeDocument, RollingDocument, WrittenDocument)


@dataclass(frozen=True, slots=True)
class TaskDocuments:
    """The documents of one task of one model, in order of `doc_id`, and how they were scored.

    `max_length`: the most inputs a forward had, None if unknown; `n_total`: rows of the whole task, None if unknown.
    """

    task: str
    documents: tuple[Document, ...]
    max_length: int | None = None
    n_total: int | None = None
    source: str = ""
    checkpoint: str = ""  # digest (ours) or name (the harness's) of what was scored; "" if the file does not say
    step: int | None = None
    settings: tuple[tuple[str, str], ...] = ()  # what else moved the log-likelihoods: (name, value)

    @property
    def faulty(self) -> tuple[Document, ...]:
        """The documents that are in no number."""
        return tuple(d for d in self.documents if not d.usable)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of rows that are not there though later ones are."""
        there = {d.doc_id for d in self.documents}
        return tuple(i for i in range(max(there, default=-1)) if i not in there)

    @property
    def used(self) -> tuple[Document, ...]:
        """The documents that numbers are made of."""
        return tuple(d for d in self.documents if d.usable)


def of_kind(documents: Sequence[Document], kind: type[D]) -> list[D]:
    """The usable documents of one kind."""
    return [d for d in documents if isinstance(d, kind) and d.usable]
