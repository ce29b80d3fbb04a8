"""Byte-level BPE: trained here, or loaded from what others publish. Ids are checked against known vectors where there are any.

The `tokenizers` library is the judge of what a tokenizer.json means. A trained tokenizer is a pure function of the texts in
their order, the vocabulary size and the special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.errors import PretraceError

# Files whose ids are known: a reader that gives others would tokenise a whole corpus wrongly and nothing else would show it.
KNOWN = (
    ("gpt2", 50257, "Hello world", (15496, 995)),
    ("neox-20b", 50277, "Hello world", (12092, 1533)),
)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """An encoder with what must be known of it. `impl` is a `tokenizers.Tokenizer` or a SentencePiece processor."""

    impl: Any
    kind: str  # "tokenizers" or "sentencepiece"
    vocab_size: int  # ids in all, added tokens included
    specials: dict[str, int]  # special tokens by text
    where: str

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of one text, nothing added."""
        if self.kind == "sentencepiece":
            return np.asarray(self.impl.encode(text), np.int64)
        return np.asarray(self.impl.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of many texts, nothing added."""
        if self.kind == "sentencepiece":
            return list(self.impl.encode(texts))
        return [e.ids for e in self.impl.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens included."""
        wanted = [int(i) for i in ids]
        if self.kind == "sentencepiece":
            return str(self.impl.decode(wanted))
        return str(self.impl.decode(wanted, skip_special_tokens=False))

    def special(self, token: str) -> int:
        """The id of a special token.

        Raises
        ------
        PretraceError
            If the tokenizer does not have it.
        """
        if token in self.specials:
            return self.specials[token]
        found = self.impl.token_to_id(token) if self.kind == "tokenizers" else None
        if found is None:
            own = ", ".join(sorted(self.specials)) or "it has no specials"
            raise PretraceError(f"the tokenizer has no token {token!r}", self.where, f"declare one of its own: {own}")
        return int(found)

    @property
    def dtype(self) -> str:
        """The dtype of token files, by the rule of NeoX and Megatron."""
        return "uint16" if self.vocab_size < 65500 else "int32"


def load(path: str | Path) -> Tokenizer:
    """Loads a tokenizer.json, a folder that holds one (or vocab.json and merges.txt), or a SentencePiece model.

    Raises
    ------
    PretraceError
        If the path holds none of these, the file is damaged, or its ids are not the known ones of its name.
    """
    path = Path(path)
    if not path.exists():
        raise PretraceError(
            f"{path.name} does not exist", str(path), "name a tokenizer.json, a folder or a .model file"
        )
    if path.is_dir():
        return _load_folder(path)
    if path.suffix == ".model":
        return _load_sentencepiece(path)
    return _load_json(path)


def _load_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return _load_json(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _load_gpt2(folder)
    models = sorted(folder.glob("*.model"))
    if len(models) == 1:
        return _load_sentencepiece(models[0])
    raise PretraceError("the folder holds no tokenizer", str(folder), "it needs tokenizer.json, vocab.json and merges.txt, "
                        "or one .model file")  # fmt: skip


def _load_json(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Impl

    try:
        impl = Impl.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise PretraceError(
            f"the tokenizer cannot be read: {str(error)[:200]}", str(path), "restore the file"
        ) from None
    return checked(_wrap(impl, str(path)))


def _load_gpt2(folder: Path) -> Tokenizer:
    from tokenizers import AddedToken
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

    try:
        impl = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))._tokenizer
    except Exception as error:
        raise PretraceError(f"the tokenizer cannot be read: {str(error)[:200]}", str(folder), "restore it") from None
    if impl.token_to_id("<|endoftext|>") is not None:
        impl.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return checked(_wrap(impl, str(folder)))


def _wrap(impl: Any, where: str) -> Tokenizer:
    # The library truncates and pads on request of the file: a corpus must never be cut by a setting of a file.
    impl.no_truncation()
    impl.no_padding()
    added = {token.content: int(i) for i, token in impl.get_added_tokens_decoder().items() if token.special}
    ids = impl.get_vocab(with_added_tokens=True).values()
    return Tokenizer(impl, "tokenizers", max(ids, default=-1) + 1, added, where)


def _load_sentencepiece(path: Path) -> Tokenizer:
    try:
        import sentencepiece
    except ImportError:
        raise PretraceError("SentencePiece models need the package sentencepiece", str(path),
                            "pip install pretrace[data]") from None  # fmt: skip
    try:
        impl = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except Exception as error:
        raise PretraceError(f"the model cannot be read: {str(error)[:200]}", str(path), "restore the file") from None
    specials = {impl.id_to_piece(i): i for i in range(len(impl)) if impl.is_control(i)}
    return Tokenizer(impl, "sentencepiece", len(impl), specials, str(path))


def checked(tokenizer: Tokenizer) -> Tokenizer:
    """Refuses a tokenizer of a known size whose known ids are others."""
    for name, size, text, ids in KNOWN:
        if tokenizer.vocab_size != size or tokenizer.specials.keys() != {"<|endoftext|>"}:
            continue
        got = tuple(tokenizer.encode(text).tolist())
        if got != ids:
            raise PretraceError(f"it has the size of {name} but {text!r} gives {list(got)}, not {list(ids)}",
                                tokenizer.where, f"restore the files of {name}")  # fmt: skip
    return tokenizer


def train(texts: Iterable[str], vocab_size: int, *, specials: tuple[str, ...], min_frequency: int = 2) -> Tokenizer:
    """Trains byte-level BPE. The same texts in the same order give the same tokenizer, byte for byte.

    `specials` take the first ids, in order; then come the 256 bytes, then the merges. Every text can be encoded.
    `vocab_size` counts all of them; a corpus with too few pairs gives a smaller vocabulary.

    Raises
    ------
    PretraceError
        If the size does not hold the bytes and specials, or a special is empty or named twice.
    """
    from tokenizers import Tokenizer as Impl
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if not all(specials) or len(set(specials)) < len(specials):
        raise PretraceError(f"a special token is empty or named twice: {list(specials)}", "specials", "name each once")
    if vocab_size < 256 + len(specials):
        raise PretraceError(f"a vocabulary of {vocab_size} does not hold 256 bytes and {len(specials)} specials",
                            "vocab_size", f"set at least {256 + len(specials)}")  # fmt: skip
    impl = Impl(models.BPE())
    impl.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    impl.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(specials),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)  # fmt: skip
    impl.train_from_iterator(texts, trainer)
    return _wrap(impl, "(trained here)")


def save(tokenizer: Tokenizer, path: str | Path) -> None:
    """Writes tokenizer.json, atomically."""
    from pretrace.files import write_text

    write_text(path, str(tokenizer.impl.to_str(pretty=False)))


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a tokenizer fits a corpus."""

    documents: int
    n_bytes: int
    n_tokens: int
    used_ids: int  # distinct ids that occur
    vocab_size: int
    single_byte_share: float  # of the tokens: bytes for which no merge was found

    @property
    def bytes_per_token(self) -> float:
        """Compression."""
        return self.n_bytes / self.n_tokens if self.n_tokens else 0.0


def coverage(tokenizer: Tokenizer, texts: Iterable[str]) -> Coverage:
    """Encodes the texts and counts."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    documents = n_bytes = 0
    for text in texts:
        documents += 1
        n_bytes += len(text.encode())
        counts += np.bincount(tokenizer.encode(text), minlength=tokenizer.vocab_size)
    total = int(counts.sum())
    singles = int(counts[_single_bytes(tokenizer)].sum())
    return Coverage(documents, n_bytes, total, int((counts > 0).sum()), tokenizer.vocab_size, singles / max(total, 1))


def _single_bytes(tokenizer: Tokenizer) -> list[int]:
    if tokenizer.kind == "sentencepiece":
        return [i for i in range(tokenizer.vocab_size) if tokenizer.impl.is_byte(i)]
    vocabulary: dict[str, int] = json.loads(tokenizer.impl.to_str())["model"].get("vocab", {})
    return [i for token, i in vocabulary.items() if len(token) == 1] if isinstance(vocabulary, dict) else []


@dataclass(frozen=True, slots=True)
class Habits:
    """What a tokenizer does unasked, measured: options that are accepted and have no effect show here."""

    leading_space: bool  # a word at the start of a text gets the ids that it has after a space
    adds_begin: tuple[int, ...]  # ids that its post-processor would put before a text
    adds_end: tuple[int, ...]  # and after it; `encode` adds neither


def habits(tokenizer: Tokenizer, word: str = "word") -> Habits:
    """Measures the habits on one word (transformers#29625: the option that turns off the leading space had no effect)."""
    start, after = tokenizer.encode(word).tolist(), tokenizer.encode(f"x {word}").tolist()
    first = tokenizer.encode("x").tolist()
    spaced = after[: len(first)] == first and after[len(first) :] == start
    if tokenizer.kind == "sentencepiece":
        return Habits(spaced, (), ())
    whole = tokenizer.impl.encode(word, add_special_tokens=True).ids
    for at in range(len(whole) - len(start) + 1):
        if whole[at : at + len(start)] == start:
            return Habits(spaced, tuple(whole[:at]), tuple(whole[at + len(start) :]))
    return Habits(spaced, (), ())
