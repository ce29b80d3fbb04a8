"""One unit of a corpus becomes ids: read, encoded, special tokens put around every document, written as a part."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

import pretrace.data.encoders as encoders
import pretrace.data.tokenizer as tokenizer
from pretrace.data.corpus import CorpusSpec, Document
from pretrace.data.judge import Encoded, Judged, OnDifference
from pretrace.data.parts import Unit
from pretrace.errors import PretraceError
from pretrace.files import atomic_file
from pretrace.spec import Spec

_BATCH_CHARS = 4_000_000  # text in memory at a time, a worker
_Encode = Callable[[list[str], int, list[str]], Encoded]


class TokeniseSpec(Spec):
    """Every choice that decides the ids."""

    corpus: CorpusSpec
    tokenizer: str  # tokenizer.json, a folder, or a SentencePiece model; hashed by content
    prepend: str | None  # a special token before every document (BOS)
    append: str | None  # a special token after every document (EOD)
    empty: Literal["drop", "keep"]  # documents without a token: left out (as the writers upstream do), or of length 0
    special_text: Literal["token", "text"]  # a special token written out in a text: is it the token, or its letters?
    dtype: Literal["uint16", "int32"] | None  # None: by the rule of NeoX and Megatron (uint16 below 65,500 ids)
    backend: encoders.Backend
    judge_every: PositiveInt  # a fast backend is checked on every k-th document (and on all unusual ones)
    on_difference: OnDifference = "stop"  # or put the reference's ids in place of other ones (unusual documents only)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What one unit gave."""

    n_documents: int
    n_dropped: int
    n_tokens: int
    n_chars: int
    n_judged: int
    replaced: tuple[str, ...]  # places of documents whose ids are the reference's, because the fast ones differ
    encoder: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Task:
    """One unit with what it needs."""

    spec: TokeniseSpec
    tokenizer_digest: str
    unit: Unit
    folder: str


def run_unit(task: Task) -> PartResult:
    """Tokenises one unit into `NUMBER.bin` (ids) and `NUMBER.len` (i32 tokens of each document)."""
    # Rows and ids make no cycles; looking for some in hundreds of thousands of them takes 4% of the time.
    collected = gc.isenabled()
    gc.disable()
    try:
        return _run_unit(task)
    finally:
        if collected:
            gc.enable()


def _run_unit(task: Task) -> PartResult:
    spec = task.spec
    loaded, name, encode = encoder(spec, task.tokenizer_digest)
    dtype = np.dtype(spec.dtype or loaded.dtype)
    head, tail = ([loaded.special(t)] if t is not None else [] for t in (spec.prepend, spec.append))
    base = Path(task.folder) / f"{task.unit.number:06d}"
    documents = dropped = tokens = chars = judged = 0
    replaced: list[str] = []
    with atomic_file(f"{base}.bin") as data, atomic_file(f"{base}.len") as lengths_file:
        for batch in _batches(task.unit.documents(spec.corpus)):
            made = _encoded(batch, encode, documents + dropped, spec.corpus.holds, loaded.vocab_size)
            flat, counts = _with_ends(made, head, tail, dtype, batch, keep=spec.empty == "keep")
            data.write(flat.data)
            lengths_file.write(counts.astype("<i4").data)
            documents, dropped = documents + len(counts), dropped + len(batch) - len(counts)
            tokens, judged = tokens + len(flat), judged + made.judged
            replaced += made.replaced
            chars += sum(len(d.text) for d in batch)
    return PartResult(documents, dropped, tokens, chars, judged, tuple(replaced), name, dtype.name)


def _encoded(batch: list[Document], encode: _Encode, first: int, holds: str, vocab_size: int) -> Encoded:
    """The ids of a batch; `first` is the number of its first document in the unit."""
    if holds == "ids":
        return _ids_of(batch, vocab_size)
    try:
        return encode([d.text for d in batch], first, [d.where for d in batch])
    except (UnicodeEncodeError, TypeError):  # the encoders refuse half of a surrogate pair, each in its own words
        for document in batch:
            if any("\ud800" <= c <= "\udfff" for c in document.text):
                raise PretraceError("the text holds half of a surrogate pair, which is no character", document.where,
                                    "replace it: such a \\ud800 comes from a text that was cut") from None  # fmt: skip
        raise


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + (0 if document.ids is None else 8 * document.ids.size)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _with_ends(
    made: Encoded,
    head: list[int],
    tail: list[int],
    dtype: np.dtype[Any],
    batch: list[Document],
    *,
    keep: bool,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The ids in the dtype of the file, special tokens around every document that has any; others vanish, or keep length 0."""
    ids, lengths = made.ids, made.lengths
    top = max((int(ids.max()) if ids.size else 0), *head, *tail, 0)
    if top > np.iinfo(dtype).max:
        raise PretraceError(f"id {top} does not fit {dtype.name}", batch[0].where, "set dtype to int32")
    before, after = np.array(head, dtype), np.array(tail, dtype)
    small = ids.astype(dtype)
    parts: list[NDArray[Any]] = []
    at = 0
    for count in lengths.tolist():
        if count:
            parts += (before, small[at : at + count], after)
            at += count
    extra, counts = len(head) + len(tail), lengths[lengths > 0]
    out = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return out, (np.where(lengths > 0, lengths + extra, 0) if keep else counts + extra)


def _ids_of(batch: list[Document], vocab_size: int) -> Encoded:
    """The ids that a pre-tokenised corpus brings, checked against the vocabulary."""
    rows = [document.ids if document.ids is not None else np.zeros(0, np.int64) for document in batch]
    for document, row in zip(batch, rows):
        if row.size and int(row.max()) >= vocab_size:
            raise PretraceError(f"id {int(row.max())} is outside the tokenizer's {vocab_size:,} ids", document.where,
                                "name the tokenizer that made the ids")  # fmt: skip
    return Encoded(np.concatenate(rows), np.fromiter((len(row) for row in rows), np.int64, len(rows)))


def loaded_tokenizer(spec: TokeniseSpec) -> tokenizer.Tokenizer:
    """The tokenizer of a spec; it has the special tokens that are declared."""
    loaded = tokenizer.load(spec.tokenizer)
    for token in filter(None, (spec.prepend, spec.append)):
        loaded.special(token)
    return loaded


@lru_cache(maxsize=1)
def encoder(spec: TokeniseSpec, tokenizer_digest: str) -> tuple[tokenizer.Tokenizer, str, _Encode]:
    """The tokenizer, the name of what encodes, and the function that does."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # parallel over units; threads inside would only compete
    loaded = loaded_tokenizer(spec)
    reference = encoders.Reference(loaded, spec.special_text)
    if spec.backend == "tokenizers":
        return loaded, reference.name, lambda texts, first, where: Encoded(*reference(texts))
    fast = encoders.FAST[spec.backend](spec.tokenizer, spec.special_text)
    return loaded, fast.name, Judged(fast, reference, loaded, spec.judge_every, spec.on_difference)
