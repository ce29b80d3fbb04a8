"""Which texts hold what tokenizers part ways on: other scripts, marks, controls, odd spaces, special tokens written out.

Of the packages that were tried, every one that gave other ids than the tokenizers library did so on such texts first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Bytes of usual UTF-8: printable ASCII, tab and line ends, Latin letters up to U+024F, and what begins with E2
# (punctuation, arrows, box drawing ...), minus the odd ones below. Everything else is unusual.
_ASCII = bytes(range(128))
_USUAL = bytes([*range(0x80, 0xC0), *range(0xC2, 0xCA), 0xE2])
_ODD = re.compile(
    rb"\xc2[\x80-\xa0\xad]"  # C1 controls, no-break space, soft hyphen
    rb"|\xc9[\x90-\xbf]"  # from U+0250 on: phonetic letters
    rb"|\xe2\x80[\x80-\x8f\xa8-\xaf]|\xe2\x81[\x9f-\xaf]"  # spaces of other widths, directions, line and paragraph ends
    rb"|\xe2\x84[\xa0-\xaf]"  # signs that normalisation replaces (kelvin, ohm, angstrom)
)


@dataclass(frozen=True, slots=True)
class Words:
    """Words to be found in texts, all at once."""

    pattern: re.Pattern[str]

    def in_(self, text: str) -> bool:
        """Whether the text holds any of the words."""
        return self.pattern.search(text) is not None


def words(found: Iterable[str]) -> Words | None:
    """The words as one value; None if there are none."""
    distinct = sorted({word for word in found if word})
    return Words(re.compile("|".join(map(re.escape, distinct)))) if distinct else None


def unusual(texts: list[str], marks: Words | None = None) -> list[int]:
    """The numbers of the texts that hold unusual code points, or any of the `marks`.

    >>> unusual(["It is naïve — so.", "日本", "a\\u00a0b", "e\\u0301", "plain"])
    [1, 2, 3]
    """
    controls = _has_controls("".join(text for text in texts if text.isascii()).encode())  # rare: one look for all
    return [
        number
        for number, text in enumerate(texts)
        if (
            _is_odd(text.encode("utf-8", "surrogatepass"))
            if not text.isascii()
            else controls and _has_controls(text.encode())
        )
        or (marks is not None and marks.in_(text))
    ]


def _is_odd(raw: bytes) -> bool:
    rest = raw.translate(None, _ASCII)
    return bool(rest.translate(None, _USUAL)) or _ODD.search(rest) is not None or _has_controls(raw)


def _has_controls(raw: bytes) -> bool:
    codes = np.frombuffer(raw, np.uint8)
    other = int(np.count_nonzero(codes < 32)) - int(np.count_nonzero(codes == 10))
    return b"\x7f" in raw or (other > 0 and other != raw.count(b"\t") + raw.count(b"\r"))
