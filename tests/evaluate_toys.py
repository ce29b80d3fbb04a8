"""Toy models whose log-likelihoods one can check by hand, scored as a harness would: bigram tables and a fading memory."""

import math

import numpy as np

from pretrace.evaluate.documents import ChoiceDocument, RollingDocument, TaskDocuments
from pretrace.evaluate.rows import Row, Samples
from pretrace.score.windows import rolling

BEGIN = -1  # the begin token of the toys

# P(next | last) of a language of two letters; after a begin token, a sentence starts with "a" almost surely. Without one, what
# stands first is judged by a rare context: the model was never trained without it.
TABLE = {
    (BEGIN, "a"): 0.5, (BEGIN, "b"): 0.5,
    ("a", "a"): 0.25, ("a", "b"): 0.75,
    ("b", "a"): 0.5, ("b", "b"): 0.5,
}  # fmt: skip


def bigram(text, first=BEGIN):
    """Log-likelihoods of the letters of `text`, one token each; `first`: what stands before."""
    return np.log([TABLE[pair] for pair in zip([first, *text], text, strict=False)])


def document(doc_id, text, tokens, seen=None, page=None):
    """A rolling document of one token a letter."""
    n = len(text)
    seen = np.arange(1, n + 1) if seen is None else seen
    return RollingDocument(
        doc_id, float(np.sum(tokens)), text, page or text, n, np.asarray(tokens, float), np.arange(1, n + 1), seen,
        np.zeros(n, np.int64),
    )  # fmt: skip


def memory_document(doc_id, n_tokens, max_length, *, stride=None, noise=0.0, depth=1.0):
    """A model that learns from its window: nats = 2 + depth / sqrt(seen), and a hardness of each token under any window."""
    cut = rolling(n_tokens, max_length, stride=stride or max_length, prefix=BEGIN)
    seen = np.zeros(n_tokens, np.int64)
    for window in cut:
        for t in range(window.scored, window.stop):
            seen[t] = t - window.start + (window.prefix is not None)
    hard = np.random.default_rng(doc_id).normal(0, noise, n_tokens)
    nats = 2 + depth / np.sqrt(seen) + hard
    words = " ".join(["word"] * (n_tokens // 2))
    return RollingDocument(doc_id, float(-nats.sum()), words, words, n_tokens, -nats, None, seen)


def memory_task(max_length, *, lengths, stride=None, noise=0.0, task="wikitext", depth=1.0):
    documents = tuple(
        memory_document(i, n, max_length, stride=stride, noise=noise, depth=depth) for i, n in enumerate(lengths)
    )
    return TaskDocuments(task, documents, max_length, len(documents))


def choices_task(rights, *, n_total=None, task="hellaswag", seed=0):
    """Two choices of one length, right where `rights` says so."""
    documents = tuple(
        ChoiceDocument(i, (-1.0, -2.0) if right else (-2.0, -1.0), ("aa", "bb"), (0,), (1, 1))
        for i, right in enumerate(rights)
    )
    return TaskDocuments(task, documents, 128, n_total)


def row(text, logprobs, *, doc_id=0, idx=0, kind="choice", context="A", gold=0, task="toy", **more):
    logprobs = np.asarray(logprobs, np.float32)
    return Row(
        task, doc_id, idx, kind, context, text, float(logprobs.sum()), True, gold,
        tokens=np.arange(len(logprobs)), logprobs=logprobs, **more,
    )  # fmt: skip


def samples(*rows, **about):
    return Samples({"task": "toy", **about}, rows)


def perplexity(total_nats, below):
    return math.exp(total_nats / below)
