"""Deduplication: exact copies by hash, near copies by MinHash and LSH, every candidate judged by its exact Jaccard.

A text becomes the set of its word 5-grams (lower case, letters and digits of any script: `near.words_of`). Pairs that share an
LSH band are candidates; a candidate is a duplicate if the Jaccard similarity of the two sets is at least the threshold. So the
MinHash decides what is looked at, never what is dropped, and the report can be checked by hand. Texts with the same set are
looked at once.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import xxhash
import zstandard
from pydantic import Field, NonNegativeInt, PositiveInt

from pretrace.data.corpus import Document
from pretrace.data.near import Shingles, near_pairs, shingle_hashes
from pretrace.errors import PretraceError
from pretrace.files import atomic_file
from pretrace.spec import Spec

_SPELLED_OUT = 20  # copies of one set of which every pair is listed; of more, each with the first
Keep = Literal["first", "last", "longest"]


class DedupSpec(Spec):
    """What counts as a duplicate and which copy stays."""

    threshold: float = Field(
        gt=0, le=1
    )  # Jaccard of word n-grams from which two documents are duplicates; 1: same sets
    ngram: PositiveInt  # words in a shingle
    permutations: PositiveInt  # MinHash values a document
    bands: PositiveInt  # LSH bands; permutations / bands rows each
    seed: NonNegativeInt
    keep: Keep  # of a group of duplicates: first or last in corpus order, or longest (first of the longest)


# 42 bands of 3 rows: a pair of Jaccard 0.8 is missed with probability (1 - 0.8^3)^42 = 1e-13, one of 0.5 is
# looked at with probability 0.996. Looking is cheap, since the exact sets decide.
USUAL = DedupSpec(threshold=0.8, ngram=5, permutations=126, bands=42, seed=1, keep="first")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two documents found to be duplicates, by their place in the corpus."""

    first: int
    second: int
    jaccard: float
    exact: bool  # same text, byte for byte


@dataclass(frozen=True, slots=True)
class Group:
    """Documents joined by duplicate pairs, directly or by way of others."""

    kept: int
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DedupReport:
    """What was found and what stays. Numbers are places in the corpus; `kept` is in corpus order."""

    names: tuple[str, ...]
    pairs: tuple[Pair, ...]
    groups: tuple[Group, ...]
    kept: tuple[int, ...]
    n_candidates: int  # pairs of distinct sets that were looked at
    n_exact: int  # documents dropped as byte-identical copies
    chars: int
    chars_kept: int

    def examples(self, n: int = 5) -> list[dict[str, object]]:
        """The least similar duplicates that were found: where a threshold is wrong, it shows here."""
        chosen = sorted(self.pairs, key=lambda p: (p.jaccard, p.first, p.second))[:n]
        return [{"a": self.names[p.first], "b": self.names[p.second], "jaccard": round(p.jaccard, 4)} for p in chosen]


def deduplicate(documents: Iterable[Document], spec: DedupSpec) -> DedupReport:
    """Finds duplicates and decides what stays; the documents themselves are not held in memory, their shingles are.

    Kept documents keep their order. The same corpus and spec give the same report.

    Raises
    ------
    PretraceError
        If `bands` does not divide `permutations`, or a document holds ids instead of a text.
    """
    if spec.permutations % spec.bands:
        raise PretraceError(f"{spec.bands} bands do not divide {spec.permutations} permutations", "dedup.bands",
                            "choose a divisor")  # fmt: skip
    names: list[str] = []
    sizes: list[int] = []
    hashes: list[int] = []
    copies: dict[int, list[int]] = {}  # documents by their set of shingles, or by their text if it has none
    sets: list[Shingles] = []
    for number, document in enumerate(documents):
        if document.ids is not None:
            raise PretraceError(
                "the corpus holds ids, duplicates are found in texts", document.where, "set holds: text"
            )
        names.append(document.name)
        sizes.append(len(document.text))
        hashes.append(xxhash.xxh3_128_intdigest(document.text.encode("utf-8", "surrogatepass")))
        shingles = shingle_hashes(document.text, spec.ngram)
        key = xxhash.xxh3_128_intdigest(shingles.tobytes()) if len(shingles) else hashes[-1]
        if key not in copies:
            sets.append(shingles)
        copies.setdefault(key, []).append(number)
    near, looked_at = near_pairs(
        sets, permutations=spec.permutations, bands=spec.bands, seed=spec.seed, threshold=spec.threshold
    )
    pairs = _pairs(list(copies.values()), near, hashes)
    groups = _groups(pairs, sizes, spec.keep)
    dropped = {number for group in groups for number in group.dropped}
    kept = tuple(i for i in range(len(names)) if i not in dropped)
    return DedupReport(tuple(names), pairs, groups, kept, looked_at, len(hashes) - len(set(hashes)), sum(sizes),
                       sum(sizes[i] for i in kept))  # fmt: skip


def _pairs(classes: list[list[int]], near: dict[tuple[int, int], float], hashes: list[int]) -> tuple[Pair, ...]:
    """Every pair of documents, from the pairs of sets; of many copies each with the first."""
    found = []
    for members in classes:
        firsts = members if len(members) <= _SPELLED_OUT else members[:1]
        found += [Pair(a, b, 1.0, hashes[a] == hashes[b]) for i, a in enumerate(firsts) for b in members[i + 1 :]]
    for (left, right), similarity in near.items():
        few = max(len(classes[left]), len(classes[right])) <= _SPELLED_OUT
        ones, others = (classes[k] if few else classes[k][:1] for k in (left, right))
        found += [Pair(min(a, b), max(a, b), similarity, False) for a in ones for b in others]
    return tuple(sorted(found, key=lambda pair: (pair.first, pair.second)))


def _groups(pairs: tuple[Pair, ...], sizes: list[int], keep: Keep) -> tuple[Group, ...]:
    root: dict[int, int] = {}

    def find(x: int) -> int:
        while root.setdefault(x, x) != x:
            root[x] = root[root[x]]
            x = root[x]
        return x

    for pair in pairs:
        a, b = sorted((find(pair.first), find(pair.second)))
        root[b] = a
    members: dict[int, list[int]] = {}
    for number in sorted(root):
        members.setdefault(find(number), []).append(number)
    chosen = {
        "first": lambda m: m[0],
        "last": lambda m: m[-1],
        "longest": lambda m: max(m, key=lambda i: (sizes[i], -i)),
    }
    groups = []
    for group in members.values():
        kept = chosen[keep](group)
        groups.append(Group(kept, tuple(i for i in group if i != kept)))
    return tuple(groups)


def write_kept(documents: Iterable[Document], report: DedupReport, path: str | Path) -> None:
    """Writes the kept documents, in corpus order, as JSON lines with `id` and `text`; compressed by the name's ending.

    Raises
    ------
    PretraceError
        If the file cannot be written; nothing is left then.
    """
    kept, path = set(report.kept), Path(path)
    with atomic_file(path) as raw, _packed(raw, path) as file:
        for number, document in enumerate(documents):
            if number in kept:
                line = json.dumps({"id": document.name, "text": document.text}, ensure_ascii=False)
                file.write(line.encode("utf-8", "surrogatepass") + b"\n")


def _packed(raw: IO[bytes], path: Path) -> AbstractContextManager[Any]:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="wb", mtime=0)  # no time inside: the same documents, the same bytes
    if path.suffix == ".zst":
        return zstandard.ZstdCompressor(level=10).stream_writer(raw, closefd=False)
    return nullcontext(raw)
