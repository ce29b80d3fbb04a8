"""A text in a stream of ids: found by the bytes that the ids stand for, however the text was cut into them.

Ids at the ends of a text depend on what surrounds it, and so does the cut of its first word. What does not depend on it: a
token that lies inside the text holds bytes that the text holds. Runs of such tokens that are long enough are decoded and
looked through; nothing that holds the text is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.data.token_bytes import is_byte_level, token_bytes
from pretrace.data.tokenizer import Tokenizer
from pretrace.errors import PretraceError

_BLOCK = 1 << 20
_BETWEEN = b"\xff\xfe\xff"  # in no UTF-8 text


def find_text(tokens: NDArray[Any], text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Every place of a text in a flat array of ids: [start, stop) of the ids that hold any of its bytes, rising.

    Raises
    ------
    PretraceError
        If the text is empty.
    """
    search = plan(text, tokenizer)
    size = len(search.wanted)
    found = []
    for first in range(0, len(tokens), _BLOCK):
        block = np.asarray(tokens[first : first + _BLOCK + size])  # a hit that begins in the block is whole in it
        hits = _in_block(search, block)
        found += [(first + start, first + stop) for start, stop in hits if start < _BLOCK]
    return found


@dataclass(frozen=True, slots=True)
class Search:
    """A text to be found, and what of it tokens must hold."""

    wanted: bytes
    table: list[bytes]  # of every id
    sizes: NDArray[np.int64]  # bytes of every id
    inside: NDArray[np.bool_]  # ids that can lie inside the text
    least: int  # bytes of the text that lie in such ids, at least; 0: it may lie in one or two tokens


def plan(text: str, tokenizer: Tokenizer) -> Search:
    """What is looked for. The text is normalised as the tokenizer normalises texts."""
    wanted = _normalised(text, tokenizer).encode("utf-8", "surrogatepass")
    if not wanted:
        raise PretraceError("an empty text is everywhere", "--text", "give a text")
    table = token_bytes(tokenizer)
    inside = np.array([bool(one) and one in wanted for one in table], np.bool_)
    # All words in one string: what is found across two of them only makes the bound smaller.
    words = _BETWEEN + _BETWEEN.join(table) + _BETWEEN
    longest = min(max(map(len, table)), len(wanted) - 1)
    before = next((k for k in range(longest, 0, -1) if wanted[:k] + _BETWEEN in words), 0)
    after = next((k for k in range(longest, 0, -1) if _BETWEEN + wanted[-k:] in words), 0)
    least = 0 if wanted in words else max(0, len(wanted) - before - after)
    return Search(wanted, table, np.array([len(one) for one in table], np.int64), inside, least)


def _normalised(text: str, tokenizer: Tokenizer) -> str:
    if tokenizer.kind == "sentencepiece":
        return str(tokenizer.impl.decode(tokenizer.impl.encode(text)))
    normaliser = tokenizer.impl.normalizer
    return str(normaliser.normalize_str(text)) if normaliser and is_byte_level(tokenizer) else text


def _in_block(search: Search, block: NDArray[Any]) -> Iterator[tuple[int, int]]:
    ids = np.clip(block, 0, len(search.table) - 1)
    inner = np.ones(len(block), np.bool_)
    if search.least:
        inner = search.inside[ids] & (block == ids)  # an id beyond the vocabulary holds nothing
    edges = np.flatnonzero(np.diff(inner.view(np.int8), prepend=0, append=0))
    begins, ends = edges[::2], edges[1::2]
    total = np.concatenate([[0], np.cumsum(search.sizes[ids])])
    long = total[ends] - total[begins] >= search.least
    for begin, end in zip(begins[long].tolist(), ends[long].tolist()):
        yield from _in_run(search, block, max(0, begin - 1), min(len(block), end + 1))


def _in_run(search: Search, block: NDArray[Any], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The hits in a run of tokens with one more at each end."""
    top = len(search.table)
    words = [search.table[i] if 0 <= i < top else b"" for i in block[begin:end].tolist()]
    raw = b"".join(words)
    at = raw.find(search.wanted)
    stops = np.cumsum([len(word) for word in words])
    while at >= 0:
        start = int(np.searchsorted(stops, at, side="right"))
        stop = int(np.searchsorted(stops, at + len(search.wanted), side="left")) + 1
        yield begin + start, begin + stop
        at = raw.find(search.wanted, at + 1)
