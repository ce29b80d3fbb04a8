"""Tokenizers as evaluation needs them: ids with the place of each token in its text, and the token before a bare text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrace.data import tokenizer as ours
from pretrace.digest import digest_of, sha256_of_file
from pretrace.errors import PretraceError

# Begin-of-text and end-of-text tokens by what published tokenizers call them, where no tokenizer_config.json says so.
_BEGIN, _END = ("<s>", "<|begin_of_text|>"), ("</s>", "<|endoftext|>", "<|end_of_text|>")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids of one text and, if they are known, the index of each token's first character."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextCoder:
    """A tokenizer: `impl` of transformers (`hf` is true) or of the tokenizers library."""

    impl: Any
    hf: bool
    begin: int | None
    end: int | None
    begin_text: str
    digest: str
    where: str

    @property
    def prefix(self) -> int | None:
        """The harness's prefix token: begin-of-text, or else end-of-text."""
        return self.end if self.begin is None else self.begin

    def encode(self, texts: Sequence[str], special: bool | None) -> list[Encoded]:
        """Encodes texts; `special` as the tokenizer does (None), with (True) or without its special tokens.

        As lm-evaluation-harness does, nothing is added to a text that begins with the prefix token's own text.
        """
        found: list[Encoded | None] = [None] * len(texts)
        for add in (True, False):
            asked = [i for i, text in enumerate(texts) if self._adds(text, special) is add]
            for i, encoded in zip(asked, self._encode([texts[i] for i in asked], add), strict=True):
                found[i] = encoded
        return [encoded for encoded in found if encoded is not None]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self.impl.decode(list(ids), skip_special_tokens=True))

    def _adds(self, text: str, special: bool | None) -> bool:
        if special is None and self.begin_text and text.startswith(self.begin_text):
            return False
        return special is not False

    def _encode(self, texts: list[str], add: bool) -> list[Encoded]:
        if not texts:
            return []
        if not self.hf:
            found = self.impl.encode_batch(texts, add_special_tokens=add)
            return [Encoded(tuple(e.ids), tuple(a for a, _ in e.offsets)) for e in found]
        # verbose: the library warns of texts above the model's length, which are cut to windows here.
        fast = bool(self.impl.is_fast)
        out = self.impl(
            texts, add_special_tokens=add, return_offsets_mapping=fast, return_attention_mask=False, verbose=False
        )
        places = [tuple(a for a, _ in o) for o in out["offset_mapping"]] if fast else [()] * len(texts)
        return [Encoded(tuple(ids), at) for ids, at in zip(out["input_ids"], places, strict=True)]


def open_tokenizer(path: str | Path) -> TextCoder:
    """The tokenizer of a folder or file. A folder with tokenizer_config.json is opened by transformers, as the harness does.

    Raises
    ------
    PretraceError
        If there is none, or it cannot be read.
    """
    path = Path(path)
    if (path / "tokenizer_config.json").is_file():
        return _transformers(path)
    tokenizer = ours.load(path)
    if tokenizer.kind != "tokenizers":
        raise PretraceError(
            "a SentencePiece model without tokenizer_config.json", str(path), "save it with transformers"
        )
    begin = _first(tokenizer.impl, _BEGIN)
    end = _first(tokenizer.impl, _END)
    return _coder(tokenizer.impl, False, begin, end, path)


def _transformers(folder: Path) -> TextCoder:
    from transformers import AutoTokenizer

    try:
        impl = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises what it likes: OSError, ValueError, KeyError, Exception
        said = " ".join(str(error).split())[:200]
        raise PretraceError(f"the tokenizer cannot be read: {said}", str(folder), "restore its files") from None
    if not len(impl):
        # transformers 5 ignores vocab_file= and merges_file= silently and gives back an empty tokenizer.
        raise PretraceError(
            "the tokenizer is empty", str(folder), "restore tokenizer.json, or vocab.json and merges.txt"
        )
    for name, size, text, ids in ours.KNOWN:
        known = len(impl) == size and set(impl.all_special_tokens) == {"<|endoftext|>"}
        if known and tuple(impl(text, add_special_tokens=False)["input_ids"]) != ids:
            raise PretraceError(
                f"{text!r} does not become the ids that {name} is known by", str(folder), "restore its files"
            )
    return _coder(impl, True, impl.bos_token_id, impl.eos_token_id, folder)


def _coder(impl: Any, hf: bool, begin: int | None, end: int | None, path: Path) -> TextCoder:
    prefix = end if begin is None else begin
    text = "" if prefix is None else str(impl.decode([prefix], skip_special_tokens=False))
    return TextCoder(impl, hf, begin, end, text, _digest(path), str(path))


def _digest(path: Path) -> str:
    """sha256 over the files that decide ids."""
    names = (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.model",
    )
    files = [path / name for name in names if (path / name).is_file()] if path.is_dir() else [path]
    return digest_of({file.name: sha256_of_file(file) for file in files})


def _first(impl: Any, names: Sequence[str]) -> int | None:
    found = [impl.token_to_id(name) for name in names]
    return next((int(i) for i in found if i is not None), None)
