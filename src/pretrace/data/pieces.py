"""Where a text can be cut so that the tokenizers library gives the pieces the ids that they have in the whole text.

A byte-level BPE with GPT-2's pattern splits a text into words before it merges anything, reads from left to right and looks back
at nothing. So ids(text) is the concatenation of ids(piece) if every cut stands where the pattern always splits, no added token
crosses it, and the normaliser (NFC or none) does not look across it:

- before a space, tab or line end that follows a visible character: no word of the pattern holds a space after another character;
- between an ASCII letter and a digit or sign, a digit and a letter or sign, a sign and a letter or digit: a word is of one kind.
  After an apostrophe there is no cut (the contractions 's, 't ... are one word).

The character after a cut is ASCII, which NFC never joins to what stands before it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.data.tokenizer import Tokenizer
from pretrace.data.unusual import Words, words

_SPACES = frozenset((9, 10, 13, 32))
_OTHER, _LETTER, _DIGIT, _SIGN, _APOSTROPHE, _SPACE, _HIGH = range(7)
_SINGLETONS = re.compile(
    "[\u037e\u1fef\u212a]"
)  # NFC makes them `;`, `` ` `` and `K`: ASCII that could complete an added token


def _kind(byte: int) -> int:
    if byte in _SPACES:
        return _SPACE
    if 0x21 <= byte < 0x7F:
        text = chr(byte)
        return _LETTER if text.isalpha() else _DIGIT if text.isdigit() else _APOSTROPHE if text == "'" else _SIGN
    # The last byte of a character beyond ASCII, except those in which any Unicode space ends (U+0085, A0, 2000-200A, 2028 ...).
    spaces = {*range(0x80, 0x90), 0x9F, 0xA0, 0xA8, 0xA9, 0xAF}
    return _HIGH if 0x80 <= byte < 0xC0 and byte not in spaces else _OTHER


def _cuts_between(left: int, right: int) -> bool:
    if right == _SPACE:
        return left in (_LETTER, _DIGIT, _SIGN, _APOSTROPHE, _HIGH)
    words = {_LETTER: (_DIGIT, _SIGN, _APOSTROPHE), _DIGIT: (_LETTER, _SIGN, _APOSTROPHE), _SIGN: (_LETTER, _DIGIT)}
    return right in words.get(left, ())


# A pair of bytes is looked up as 8 * kind(left) + kind(right): three passes of bytes.translate, without a Python loop.
_LEFT = bytes(8 * _kind(b) for b in range(256))
_RIGHT = bytes(_kind(b) for b in range(256))
_CUT = bytes(_cuts_between(code // 8, code % 8) for code in range(256))


def cut_places(raw: bytes) -> NDArray[np.int64]:
    """The places [0 < p < len] before which a UTF-8 text may be cut.

    >>> cut_places(b"It's x2, (so).").tolist()
    [2, 4, 6, 7, 8, 10, 12]
    """
    left = np.frombuffer(raw.translate(_LEFT), np.uint8)
    right = np.frombuffer(raw.translate(_RIGHT), np.uint8)
    return np.flatnonzero(np.frombuffer((left[:-1] + right[1:]).tobytes().translate(_CUT), np.bool_)) + 1


@dataclass(frozen=True, slots=True)
class Cutter:
    """Where the texts of one tokenizer may be cut."""

    whole: Words | None  # a text that holds one of them must stay whole: they are added tokens with a cut inside

    def may_cut(self, text: str) -> bool:
        """Whether the text may be cut at its `cut_places`."""
        return not ((self.whole is not None and self.whole.in_(text)) or _SINGLETONS.search(text))


def cutter(tokenizer: Tokenizer) -> Cutter | None:
    """The cutter of a tokenizer; None for one whose texts must stay whole: its pipeline is not the one described above."""
    if tokenizer.kind != "tokenizers":
        return None
    impl = tokenizer.impl
    normaliser, split = (
        json.loads(part.__getstate__()) if part else {} for part in (impl.normalizer, impl.pre_tokenizer)
    )
    added = impl.get_added_tokens_decoder().values()
    plain = (
        normaliser.get("type", "NFC") == "NFC"
        and (split.get("type"), split.get("add_prefix_space"), split.get("use_regex", True))
        == ("ByteLevel", False, True)
        and type(impl.model).__name__ == "BPE"
        and not (impl.model.dropout or impl.model.continuing_subword_prefix or impl.model.end_of_word_suffix)
        and not any(token.single_word or token.lstrip or token.rstrip for token in added)
    )
    return Cutter(words(t.content for t in added if len(cut_places(t.content.encode())))) if plain else None
