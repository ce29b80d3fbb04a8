"""Encoding many texts into one flat array: the tokenizers library, or a fast backend that it judges.

A fast backend is used only under a judge: every k-th document and every document with unusual code points is encoded again by
the tokenizers library (of long ones the lines around those places), and the first difference stops the run with the document.
Of seven packages that were tried, three gave other ids than the tokenizers library on plain English text, without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrace.data.tokenizer import Tokenizer
from pretrace.errors import PretraceError

Backend = Literal["tokenizers", "fastokens"]
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
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        parts = [np.asarray(row, np.uint32) for row in rows]
        return (np.concatenate(parts) if parts else np.zeros(0, np.uint32)), lengths


class Fastokens:
    """The fastokens package: about 40 times the tokenizers library's rate on text it has not seen."""

    def __init__(self, path: str, special_text: Literal["token", "text"]) -> None:
        try:
            import fastokens
        except ImportError:
            raise PretraceError("the fast backend needs the package fastokens", "tokenise.backend",
                                "pip install pretrace[fast], or use the backend tokenizers") from None  # fmt: skip
        file = Path(path)
        try:
            self._impl: Any = fastokens.Tokenizer.from_file(str(file / "tokenizer.json" if file.is_dir() else file))
        except Exception as error:  # the package raises its own kinds for files that it does not support
            raise PretraceError(f"fastokens cannot use this tokenizer: {str(error)[:200]}", path,
                                "use the backend tokenizers") from None  # fmt: skip
        self._split = special_text == "text"
        self.name = f"fastokens {version('fastokens')}"

    def __call__(self, texts: list[str]) -> Flat:
        """The ids of many texts."""
        ids, offsets = self._impl.encode_batch_flat(texts, split_special_tokens=self._split)
        return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(offsets, "<i8"))


@dataclass(frozen=True, slots=True)
class Judged:
    """A fast encoder and the reference that checks a part of what it does."""

    fast: Encoder
    reference: Encoder
    every: int  # document k is judged if k is a multiple of this

    def __call__(self, texts: list[str], first: int, where: list[str]) -> tuple[NDArray[Any], NDArray[np.int64], int]:
        """The ids, the lengths, and how many documents were judged. `first` is the number of the first text in its corpus.

        Raises
        ------
        PretraceError
            At the first document whose ids differ, with its place and the first differing token.
        """
        ids, lengths = self.fast(texts)
        whole, parts = self._chosen(texts, first)
        self._compare([texts[i] for i in whole], [where[i] for i in whole], _rows(ids, lengths, whole))
        excerpts = [excerpt for _, excerpt in parts]
        self._compare(excerpts, [where[i] for i, _ in parts], _rows(*self.fast(excerpts), range(len(excerpts))))
        return ids, lengths, len(whole) + len({i for i, _ in parts})

    def _chosen(self, texts: list[str], first: int) -> tuple[list[int], list[tuple[int, str]]]:
        """Texts to judge whole, and excerpts of long texts around their unusual places."""
        whole: list[int] = []
        parts: list[tuple[int, str]] = []
        for i, text in enumerate(texts):
            if (first + i) % self.every == 0:
                whole.append(i)
            elif is_unusual(text):
                if len(text) <= WHOLE_UP_TO:
                    whole.append(i)
                else:
                    parts += [(i, excerpt) for excerpt in unusual_excerpts(text)]
        return whole, parts

    def _compare(self, texts: list[str], where: list[str], got: list[NDArray[Any]]) -> None:
        if not texts:
            return
        wanted, counts = self.reference(texts)
        for one, expected, place in zip(got, _rows(wanted, counts, range(len(texts))), where):
            if not np.array_equal(one, expected):
                raise self._differs(one, expected, place)

    def _differs(self, got: NDArray[Any], wanted: NDArray[Any], where: str) -> PretraceError:
        shared = min(len(got), len(wanted))
        at = int(np.argmax(np.append(got[:shared] != wanted[:shared], True)))
        return PretraceError(
            f"{self.fast.name} gives other ids than {self.reference.name}: token {at} is "
            f"{got[at] if at < len(got) else 'absent'}, expected {wanted[at] if at < len(wanted) else 'none'}",
            where, "use the backend tokenizers for this tokenizer and text")  # fmt: skip


def _rows(ids: NDArray[Any], lengths: NDArray[np.int64], chosen: Iterable[int]) -> list[NDArray[Any]]:
    ends = np.cumsum(lengths)
    return [ids[ends[i] - lengths[i] : ends[i]] for i in chosen]


# Longer documents are judged by excerpts: the reference is 20 to 50 times slower, and one odd sign in a large file would
# cost as much as tokenising forty times its size.
WHOLE_UP_TO = 8192
_EXCERPT_CHARS = 512
_EXCERPTS_IN_ALL = 8_192


def unusual_excerpts(text: str) -> list[str]:
    """The lines of a text that hold unusual code points, each with the line before and after it; long lines by 512 characters.

    After 8,192 characters of them only places with a code point that did not stand in them are added.

    >>> unusual_excerpts("a\\nb\\n\u65e5\\nc\\nd")
    ['b\\n\u65e5\\nc\\n']
    """
    windows: list[tuple[int, int]] = []
    at = size = 0
    while size < _EXCERPTS_IN_ALL and (found := _PLACE.search(text, at)) is not None:
        start, stop = _around(text, found.start(), found.end())
        if windows and start <= windows[-1][1]:
            first, last = windows.pop()
            start, size = first, size - (last - first)
        windows.append((start, stop))
        size += stop - start
        at = max(found.end(), min(_line_stop(text, found.end()), stop) - 1)
    seen = {place for a, b in windows for place in _PLACE.findall(text[a:b])}
    for place in sorted(set(_PLACE.findall(text, at)) - seen):
        first = text.find(place, at)
        windows.append(_around(text, first, first + len(place)))
    return [text[start:stop] for start, stop in windows]


def _around(text: str, first: int, last: int) -> tuple[int, int]:
    start, stop = _line_start(text, _line_start(text, first) - 1), _line_stop(text, _line_stop(text, last))
    return max(start, first - _EXCERPT_CHARS), min(stop, last + _EXCERPT_CHARS)


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, max(at, 0)) + 1


def _line_stop(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


# Bytes of usual UTF-8: printable ASCII, tab and line ends, Latin letters up to U+024F, and what begins with E2
# (punctuation, arrows, box drawing ...), minus the odd ones below. Everything else is judged.
_USUAL = bytes([9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xCA), 0xE2])
_ODD = re.compile(
    rb"\xc2[\x80-\xa0\xad]"  # C1 controls, no-break space, soft hyphen
    rb"|\xc9[\x90-\xbf]"  # from U+0250 on: phonetic letters
    rb"|\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\x9f-\xaf]"  # spaces of other widths, directions, line and paragraph ends
    rb"|\xe2\x84[\xa0-\xaf]"  # signs that normalisation replaces (kelvin, ohm, angstrom)
    rb"|<\|"  # what may be a special token written out
)


# The same rule, for text: where the unusual code points stand.
_PLACE = re.compile("[^\t\n\r -~\u00a1-\u00ac\u00ae-\u024f\u2010-\u2027\u2030-\u205e\u2070-\u211f\u2130-\u2fff]|<\\|")


def is_unusual(text: str) -> bool:
    """Whether a text holds code points on which tokenizers part ways: other scripts, marks, controls, odd spaces, `<|`.

    >>> [is_unusual(t) for t in ("It is naïve — so.", "日本", "a\\u00a0b", "e\\u0301")]
    [False, True, True, True]
    """
    raw = text.encode("utf-8", "surrogatepass")
    if raw.translate(None, _USUAL):
        return True
    if text.isascii():  # most texts: without the slower search
        return "<|" in text
    return _ODD.search(raw) is not None
