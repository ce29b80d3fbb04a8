"""The demo's data: the embedded books as two editions, the second deduplicated for real, both as token files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from pretrace.data import CorpusSpec, Document
from pretrace.data import tokenizer as tokenizers
from pretrace.data.corpus import read
from pretrace.data.dedup import USUAL, deduplicate
from pretrace.data.embedded import books
from pretrace.data.tokenfile import token_dtype, write_pair
from pretrace.digest import sha256_of_file
from pretrace.errors import PretraceError, naming

END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Edition:
    """One edition of the corpus as a token file."""

    name: str
    prefix: Path
    content: str  # sha256 of the tokens
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Editions:
    """Both editions, and the tokenizer that they share."""

    standard: Edition
    deduped: Edition
    tokenizer: Path
    vocab_size: int


def corpus_spec(path: str | Path | None = None) -> CorpusSpec:
    """The embedded books, or another JSON-lines corpus with the keys `id` and `text`."""
    return CorpusSpec(paths=(str(path or books()),), format="jsonl", field="text", holds="text", id_field="id")


def check_corpus(path: str | Path | None) -> None:
    """Looks at the first document only, so that a wrong path is said before anything is started.

    Raises
    ------
    PretraceError
        If there is no corpus, or no document in it.
    """
    if next(iter(read(corpus_spec(path))), None) is None:
        raise PretraceError("the corpus holds no document", str(path), "name a corpus with documents in it")


def make_editions(folder: Path, *, vocab_size: int, corpus: str | Path | None = None, every: int = 1) -> Editions:
    """Reads, deduplicates, trains a tokenizer on the standard edition, and writes both token files into `folder`.

    `every` takes each so many-th document only.

    Raises
    ------
    PretraceError
        If the corpus cannot be read or holds no text.
    """
    documents = list(islice(read(corpus_spec(corpus)), 0, None, every))
    if not any(document.text for document in documents):
        raise PretraceError("the corpus holds no text", str(corpus or books()), "name a corpus with documents in it")
    kept = deduplicate(documents, USUAL).kept
    tokenizer = tokenizers.train((d.text for d in documents), vocab_size, specials=(END,))
    with naming(folder, "making the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizers.save(tokenizer, folder / "tokenizer.json")
    whole = _write(folder, "standard", documents, tokenizer)
    rest = _write(folder, "deduped", [documents[i] for i in kept], tokenizer)
    return Editions(whole, rest, folder / "tokenizer.json", tokenizer.vocab_size)


def _write(folder: Path, name: str, documents: list[Document], tokenizer: tokenizers.Tokenizer) -> Edition:
    end = tokenizer.special(END)
    encoded = [np.append(np.asarray(ids, np.int64), end) for ids in tokenizer.encode_batch([d.text for d in documents])]
    prefix = folder / name
    write_pair(prefix, encoded, token_dtype(tokenizer.vocab_size))
    return Edition(name, prefix, sha256_of_file(f"{prefix}.bin"), len(documents), sum(map(len, encoded)))
