"""How a sample's number becomes tokens: a window of a stream of documents, an entry of a file, a block of a flat array.

Axes: W = seq_len + 1 places of a row. A place without a token holds NO_TOKEN; it becomes input 0 and an uncounted label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrace.data.index import Maps
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of one document of one source."""

    source: int
    document: int
    start: int
    stop: int


class Windows(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def row(self, sample: int) -> NDArray[np.int64]:
        """The W places of a sample."""

    def spans(self, sample: int) -> tuple[Span, ...]:
        """Which documents the W places come from, in order."""


@dataclass(frozen=True, slots=True)
class StreamWindows:
    """Windows of the stream of documents that doc_idx describes (NeoX, Megatron-core)."""

    file: TokenFile
    maps: Maps
    seq_len: int
    extra: int

    def __len__(self) -> int:
        return len(self.maps.sample_idx) - 1

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The documents of a sample; the last token of the window is the first of the next."""
        (first, offset), (last, end) = self.maps.sample_idx[sample].tolist(), self.maps.sample_idx[sample + 1].tolist()
        found = []
        for slot in range(first, last + 1):
            document = int(self.maps.doc_idx[slot])
            start = offset if slot == first else 0
            stop = end + self.extra if slot == last else int(self.file.lengths[document])
            if stop > start:
                found.append(Span(0, document, start, stop))
        return tuple(found)

    def row(self, sample: int) -> NDArray[np.int64]:
        """The tokens of a sample; a partial one is filled up with NO_TOKEN."""
        row = np.full(self.seq_len + 1, NO_TOKEN, np.int64)
        at = 0
        for span in self.spans(sample):
            start = self.file.start(span.document)
            size = span.stop - span.start
            row[at : at + size] = self.file.tokens[start + span.start : start + span.stop]
            at += size
        return row


@dataclass(frozen=True, slots=True)
class EntryWindows:
    """Every sequence of the file is one sample, never repacked (pre-shuffled files)."""

    file: TokenFile
    seq_len: int

    def __len__(self) -> int:
        return len(self.file)

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The sequence itself: a pre-shuffled file does not know its documents."""
        return (Span(0, sample, 0, self.seq_len + 1),)

    def row(self, sample: int) -> NDArray[np.int64]:
        """The tokens of the sequence."""
        row: NDArray[np.int64] = self.file.sequence(sample).astype(np.int64)
        if len(row) != self.seq_len + 1:
            raise PretraceError(f"entry {sample:,} has {len(row):,} tokens, a sample needs {self.seq_len + 1:,}",
                                self.file.prefix, "this is not a pre-shuffled file of that seq_len")  # fmt: skip
        return row


@dataclass(frozen=True, slots=True)
class FlatWindows:
    """Window i of one flat array is [i * advance, i * advance + width) (OLMo, llm.c, nanoGPT, datatrove)."""

    tokens: NDArray[Any]
    seq_len: int
    width: int  # tokens read: seq_len + 1, or seq_len where the last place has no target
    advance: int
    source: int = 0

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - self.width) // self.advance + 1)

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The place in the file: a flat array does not know its documents."""
        start = sample * self.advance
        return (Span(self.source, -1, start, start + self.width),)

    def row(self, sample: int) -> NDArray[np.int64]:
        """The tokens of the window."""
        row = np.full(self.seq_len + 1, NO_TOKEN, np.int64)
        start = sample * self.advance
        row[: self.width] = self.tokens[start : start + self.width]
        return row


@dataclass(frozen=True, slots=True)
class Joined:
    """The samples of several sources one after another."""

    parts: tuple[Windows, ...]
    firsts: tuple[int, ...]  # number of each part's first sample

    def __len__(self) -> int:
        return self.firsts[-1] + len(self.parts[-1])

    def _find(self, sample: int) -> tuple[int, int]:
        part = int(np.searchsorted(self.firsts, sample, side="right")) - 1
        return part, sample - self.firsts[part]

    def row(self, sample: int) -> NDArray[np.int64]:
        """The tokens of a sample of any part."""
        part, number = self._find(sample)
        return self.parts[part].row(number)

    def spans(self, sample: int) -> tuple[Span, ...]:
        """The spans, with the part as their source."""
        part, number = self._find(sample)
        return tuple(Span(part, s.document, s.start, s.stop) for s in self.parts[part].spans(number))


def join(parts: list[Windows]) -> Windows:
    """One `Windows` over all parts."""
    if len(parts) == 1:
        return parts[0]
    sizes = [0, *(len(p) for p in parts[:-1])]
    return Joined(tuple(parts), tuple(int(n) for n in np.cumsum(sizes)))
