"""Encoding many texts into one flat array: the tokenizers library, or a fast backend that it judges (`judge`).

Of seven packages that were tried, three gave other ids than the tokenizers library on plain English text, without a warning.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrace.data.tokenizer import Tokenizer, load
from pretrace.errors import PretraceError

Backend = Literal["tokenizers", "fastokens", "gigatoken"]
Flat = tuple[NDArray[Any], NDArray[np.int64]]  # ids of all texts one after another, and how many each has


class Encoder(Protocol):
    """Texts -> ids."""

    name: str

    def __call__(self, texts: list[str]) -> Flat:
        """The ids of many texts."""


class Reference:
    """The tokenizers library (or SentencePiece): what the ids are, by definition."""

    def __init__(self, tokenizer: Tokenizer, special_text: Literal["token", "text"]) -> None:
        self._tokenizer = tokenizer
        if tokenizer.kind == "tokenizers":
            tokenizer.impl.encode_special_tokens = special_text == "text"
        self.name = f"{tokenizer.kind} {version(tokenizer.kind)}"

    def __call__(self, texts: list[str]) -> Flat:
        """The ids of many texts."""
        rows = self._tokenizer.encode_batch(texts)
        ids = array("I")
        for row in rows:
            ids.extend(row)
        return np.asarray(ids), np.fromiter(map(len, rows), np.int64, len(rows))


class Fastokens:
    """The fastokens package: about 40 times the tokenizers library's rate on text it has not seen."""

    def __init__(self, path: str, special_text: Literal["token", "text"]) -> None:
        try:
            import fastokens
        except ImportError:
            raise PretraceError("the fast backend needs the package fastokens", "tokenise.backend",
                                "pip install pretrace[fast], or use the backend tokenizers") from None  # fmt: skip
        self._impl: Any = _opened("fastokens", lambda file: fastokens.Tokenizer.from_file(str(file)), path)
        self._split = special_text == "text"
        self.name = f"fastokens {version('fastokens')}"

    def __call__(self, texts: list[str]) -> Flat:
        """The ids of many texts."""
        ids, offsets = self._impl.encode_batch_flat(texts, split_special_tokens=self._split)
        return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(offsets, "<i8"))


class Gigatoken:
    """The gigatoken package: about twice fastokens' rate on program text. Its memory of words grows with the text."""

    def __init__(self, path: str, special_text: Literal["token", "text"]) -> None:
        try:
            import gigatoken
        except ImportError:
            raise PretraceError("this backend needs the package gigatoken", "tokenise.backend",
                                "pip install pretrace[gigatoken], or use the backend fastokens") from None  # fmt: skip
        if special_text == "text":
            raise PretraceError("gigatoken reads special tokens that are written out as tokens", "tokenise.special_text",
                                "use the backend fastokens or tokenizers for special_text: text")  # fmt: skip
        self._encode: Any = _opened("gigatoken", lambda file: gigatoken.Tokenizer(file), path).backend.encode
        self.name = f"gigatoken {version('gigatoken')}"

    def __call__(self, texts: list[str]) -> Flat:
        """The ids of many texts."""
        rows = [self._encode(text) for text in texts]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return (np.concatenate(rows) if rows else np.zeros(0, np.uint32)), lengths


def _opened(name: str, opener: Callable[[Path], Any], path: str) -> Any:
    try:
        with _json_of(Path(path)) as file:
            return opener(file)
    except PretraceError:
        raise
    except Exception as error:  # these packages raise their own kinds for files that they do not support
        raise PretraceError(f"{name} cannot use this tokenizer: {str(error)[:200]}", path,
                            "use the backend tokenizers") from None  # fmt: skip


@contextmanager
def _json_of(path: Path) -> Iterator[Path]:
    """The tokenizer.json of a tokenizer: these packages read nothing else, so vocab.json with merges.txt becomes one."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_dir() or file.is_file():
        yield file
        return
    loaded = load(path)
    if loaded.kind != "tokenizers":
        raise PretraceError("the fast backends read no SentencePiece model", str(path), "use the backend tokenizers")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "tokenizer.json"
        made.write_text(loaded.impl.to_str(), encoding="utf-8")
        yield made


FAST: dict[str, type[Fastokens] | type[Gigatoken]] = {"fastokens": Fastokens, "gigatoken": Gigatoken}
