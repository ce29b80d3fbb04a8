"""The judge of a fast backend: every k-th document and every document with unusual code points has the ids of the reference.

The reference (the tokenizers library) is 20 to 50 times slower than what it judges, so it is asked for each distinct piece of
the unusual documents once: `pieces` says where a text can be cut without changing its ids. Where it cannot be cut, and for
every k-th document, the reference encodes the whole text. Nothing of a judged document stays unjudged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrace.data.encoders import Encoder, Flat
from pretrace.data.pieces import Cutter, cut_places, cutter
from pretrace.data.tokenizer import Tokenizer
from pretrace.data.unusual import unusual, words
from pretrace.errors import PretraceError

_KNOWN_PIECES = 400_000  # kept with their ids, about 60 MB; then forgotten together
OnDifference = Literal["stop", "reference"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of a batch of texts one after another, how many each has, and what the judge did."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    judged: int = 0  # texts
    replaced: tuple[str, ...] = ()  # places of texts whose ids are the reference's, because the fast ones differ


class Judged:
    """A fast encoder and the reference that checks a part of what it does."""

    def __init__(
        self, fast: Encoder, reference: Encoder, tokenizer: Tokenizer, every: int, on_difference: OnDifference = "stop"
    ) -> None:
        self.fast, self.reference = fast, reference
        self.every = every  # document k is judged if k is a multiple of this
        self.on_difference = on_difference  # take the reference's ids: of unusual documents only, which are all judged
        found = cutter(tokenizer)
        self._by_piece = None if found is None else _ByPiece(reference, found)
        self._marks = words(word for word in tokenizer.specials if word.strip())

    def __call__(self, texts: list[str], first: int, where: list[str]) -> Encoded:
        """The ids of the texts. `first` is the number of the first text in its corpus.

        Raises
        ------
        PretraceError
            At the first document whose ids differ, with its place and the first differing token.
        """
        rows = _Rows(*self.fast(texts))
        sampled = [i for i in range(-first % self.every, len(texts), self.every)]
        odd = sorted(set(unusual(texts, self._marks)) - set(sampled))
        instead: dict[int, NDArray[Any]] = {}
        for i, expected in (*zip(sampled, self._whole([texts[i] for i in sampled])), *self._expected(texts, odd)):
            if np.array_equal(rows.row(i), expected):
                continue
            if self.on_difference == "stop" or i in sampled:
                raise self._differs(rows.row(i), expected, where[i])
            instead[i] = expected
        ids, lengths = rows.replaced(instead)
        return Encoded(ids, lengths, len(sampled) + len(odd), tuple(where[i] for i in sorted(instead)))

    def _whole(self, texts: list[str]) -> list[NDArray[Any]]:
        rows = _Rows(*self.reference(texts))
        return [rows.row(i) for i in range(len(texts))]

    def _expected(self, texts: list[str], chosen: list[int]) -> Iterable[tuple[int, NDArray[Any]]]:
        """The reference's ids of the chosen texts."""
        pieces = self._by_piece
        cut = [i for i in chosen if pieces is not None and pieces.cutter.may_cut(texts[i])]
        whole = sorted(set(chosen) - set(cut))
        found = dict(zip(whole, self._whole([texts[i] for i in whole])))
        if pieces is not None and cut:
            found |= dict(zip(cut, pieces([texts[i] for i in cut])))
        return sorted(found.items())

    def _differs(self, got: NDArray[Any], wanted: NDArray[Any], where: str) -> PretraceError:
        shared = min(len(got), len(wanted))
        at = int(np.argmax(np.append(got[:shared] != wanted[:shared], True)))
        return PretraceError(
            f"{self.fast.name} gives other ids than {self.reference.name}: token {at} is "
            f"{got[at] if at < len(got) else 'absent'}, expected {wanted[at] if at < len(wanted) else 'none'}",
            where, "use the backend tokenizers for this tokenizer and text, or take the reference's ids where they differ "
            "(on_difference: reference)")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ByPiece:
    """The reference's ids of texts that may be cut: each distinct piece is encoded once and remembered."""

    reference: Encoder
    cutter: Cutter
    _known: dict[str, int] = field(default_factory=dict)  # piece -> its number in the store
    _store: _Store = field(default_factory=lambda: _Store())

    def __call__(self, texts: list[str]) -> list[NDArray[Any]]:
        """The ids of every text."""
        raws = [text.encode() for text in texts]
        offsets, ends = _offsets(raws)
        words = pa.Array.from_buffers(
            pa.large_utf8(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(raws))]
        ).dictionary_encode()
        numbers = self._numbers_of(words.dictionary.to_pylist())
        flat, lengths = self._store.rows(numbers[words.indices.to_numpy()])
        stops = np.concatenate([[0], np.cumsum(lengths)])[np.searchsorted(offsets, [0, *ends])]
        return [flat[a:b] for a, b in itertools.pairwise(stops)]

    def _numbers_of(self, words: list[str]) -> NDArray[np.int64]:
        """The numbers of pieces in the store; the reference is asked for those that it has not seen."""
        if len(self._known) > _KNOWN_PIECES:
            self._known.clear()
            self._store.clear()
        new = [word for word in words if word not in self._known]
        self._known.update(zip(new, range(len(self._known), len(self._known) + len(new))))
        self._store.add(*self.reference(new))
        return np.fromiter(map(self._known.__getitem__, words), np.int64, len(words))


class _Store:
    """A ragged array of ids that grows."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets every row."""
        self._ids, self._used = np.zeros(1 << 16, np.uint32), 0
        self._starts, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, ids: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Appends rows."""
        while self._used + len(ids) > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[self._used : self._used + len(ids)] = ids
        self._starts = np.concatenate([self._starts, self._used + np.cumsum(counts) - counts])
        self._counts = np.concatenate([self._counts, counts])
        self._used += len(ids)

    def rows(self, numbers: NDArray[np.int64]) -> Flat:
        """The rows with these numbers, one after another, and their lengths."""
        starts, lengths = self._starts[numbers], self._counts[numbers]
        places = np.arange(int(lengths.sum())) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return self._ids[places], lengths


def _offsets(raws: list[bytes]) -> tuple[NDArray[np.int64], list[int]]:
    """Where the pieces of all texts begin in their concatenation, its end included; and where the texts end."""
    at = 0
    parts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    ends = []
    for raw in raws:
        if len(raw):
            parts += (cut_places(raw) + at, np.array([at + len(raw)]))
        at += len(raw)
        ends.append(at)
    return np.concatenate(parts), ends


class _Rows:
    """The rows of a flat array of ids."""

    def __init__(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self.ids, self.lengths, self._ends = ids, lengths, np.cumsum(lengths)

    def row(self, number: int) -> NDArray[Any]:
        stop = int(self._ends[number])
        return self.ids[stop - int(self.lengths[number]) : stop]

    def replaced(self, instead: dict[int, NDArray[Any]]) -> Flat:
        """The flat array and its lengths with some rows replaced."""
        if not instead:
            return self.ids, self.lengths
        rows = [instead.get(i, self.row(i)) for i in range(len(self.lengths))]
        return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))
