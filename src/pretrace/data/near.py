"""Which texts are near copies: words, sets of word n-grams, MinHash and LSH to find pairs, the exact Jaccard to judge them.

Words are runs of letters and digits of any script, in lower case; of scripts that put no space between words (Chinese,
Japanese, Thai, Lao, Tibetan, Burmese, Khmer) every character is one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

Shingles = NDArray[np.uint64]  # sorted hashes of the distinct n-grams of a text
_ASCII = re.compile(r"[a-z0-9]+")
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
LARGE_BUCKET = 300  # texts that share a band: larger ones are judged against leaders, not each against each


def words_of(text: str) -> list[str]:
    """The words of a text.

    >>> words_of("It's 2 o'clock. Ça va, 今天 ok")
    ['it', 's', '2', 'o', 'clock', 'ça', 'va', '今', '天', 'ok']
    """
    if text.isascii():
        return _ASCII.findall(text.lower())
    return _WORDS.findall(unicodedata.normalize("NFC", text.lower()))


def shingle_hashes(text: str, ngram: int) -> Shingles:
    """The set of word n-grams as sorted 64-bit hashes; a text shorter than n words is one shingle, one without words has none."""
    words = words_of(text)
    grams = [" ".join(words[i : i + ngram]) for i in range(max(len(words) - ngram + 1, min(len(words), 1)))]
    return np.unique(np.fromiter((xxhash.xxh3_64_intdigest(g.encode()) for g in grams), np.uint64, len(grams)))


def jaccard(a: Shingles, b: Shingles) -> float:
    """|A and B| / |A or B| of two sorted sets; two empty sets are no duplicates (0)."""
    shared = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - shared
    return shared / union if union else 0.0


def minhash(shingles: list[Shingles], permutations: int, seed: int) -> NDArray[np.uint32]:
    """MinHash signatures [documents, permutations], computed by rensa from the hashed shingles."""
    import rensa

    if not shingles:
        return np.zeros((0, permutations), np.uint32)
    flat = np.concatenate(shingles)
    offsets = np.cumsum([0, *(len(s) for s in shingles)]).astype(np.uint64)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, permutations, seed)
    return np.asarray(matrix.to_rows(), np.uint32).reshape(len(shingles), permutations)


def near_pairs(
    shingles: list[Shingles], *, permutations: int, bands: int, seed: int, threshold: float
) -> tuple[dict[tuple[int, int], float], int]:
    """Pairs (a < b) of sets with their Jaccard similarity, where it reaches the threshold; and how many pairs were looked at.

    Every pair that shares a band is looked at, but in a bucket of more than LARGE_BUCKET sets: there each set is compared with
    the first LARGE_BUCKET leaders, sets that were like no earlier one, until it is like one of them. A notice that stands
    10,000 times with another date would be 50 million pairs else.
    """
    judged: dict[tuple[int, int], float] = {}

    def similar(a: int, b: int) -> bool:
        pair = (min(a, b), max(a, b))
        if pair not in judged:
            judged[pair] = jaccard(shingles[a], shingles[b])
        return judged[pair] >= threshold

    for members in _buckets(minhash(shingles, permutations, seed), shingles, bands):
        if len(members) <= LARGE_BUCKET:
            for i, a in enumerate(members):
                for b in members[i + 1 :]:
                    similar(a, b)
            continue
        leaders: list[int] = []
        for member in members:
            if not any(similar(leader, member) for leader in leaders[:LARGE_BUCKET]):
                leaders.append(member)
    return {pair: value for pair, value in sorted(judged.items()) if value >= threshold}, len(judged)


def _buckets(signatures: NDArray[np.uint32], shingles: list[Shingles], bands: int) -> Iterator[list[int]]:
    """The sets that share a band, band by band; those without a shingle are in none."""
    rows = signatures.shape[1] // bands
    for band in range(bands):
        part = np.ascontiguousarray(signatures[:, band * rows : (band + 1) * rows])
        found: dict[bytes, list[int]] = {}
        for number, row in enumerate(part):
            if len(shingles[number]):
                found.setdefault(row.tobytes(), []).append(number)
        yield from (members for members in found.values() if len(members) > 1)
