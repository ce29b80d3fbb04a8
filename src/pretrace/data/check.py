"""Findings on token files: what the data are, against what is declared of them. Nothing is inferred in silence.

Each check says what it measured. The public report behind a check stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pretrace.data.tokenfile as tokenfile
from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError
from pretrace.findings import Finding

WHOLE_TOKENS = 1 << 29  # files up to this size are read whole; of larger ones a sample
_BLOCK = 1 << 22
_SAMPLED_BLOCKS, _SAMPLED_BLOCK = 1000, 4000


@dataclass(frozen=True, slots=True)
class Declared:
    """What is said of a token file; None where nothing is."""

    eod_id: int | None = None  # after every document
    vocab_size: int | None = None
    preshuffled: bool | None = None
    tokenizer_eos: int | None = None
    pad_id: int | None = None


def check_pair(prefix: str | Path, declared: Declared) -> tuple[list[Finding], TokenFile | None]:
    """Findings on a pair, and the pair if it can be read."""
    try:
        file = tokenfile.open_pair(prefix)
    except PretraceError as error:
        return [_damaged(prefix, error)], None
    findings = [*_lengths(file, declared), *_ids(file, declared), *_ends(file, declared), *_begins(file)]
    if declared.pad_id is not None and declared.pad_id == declared.eod_id:
        findings.append(
            Finding(
                "pad-is-eod",
                "warning",
                f"id {declared.pad_id} is both padding and end of document: Megatron-core masks the label at "
                "every real end and reads 0 there",
                file.prefix,
                {"pad_id": declared.pad_id},
                "declare another pad_id, or none",
            )
        )
    return findings, file


def _damaged(prefix: str | Path, error: PretraceError) -> Finding:
    bin_path, idx_path = tokenfile.paths_of(prefix)
    evidence: dict[str, Any] = {p.name: p.stat().st_size for p in (bin_path, idx_path) if p.is_file()}
    # Megatron-LM#431: the length was taken before the end mark was added, so each sequence is one short.
    short = _short_by_one(bin_path, idx_path)
    if short is not None:
        return Finding(
            "lengths-without-eod",
            "error",
            f"the data hold one token more than the index says for each of {short:,} "
            "sequences: the lengths were taken before the end mark was added",
            str(idx_path),
            evidence,
            "tokenise again with a writer that counts the end mark",
        )
    return Finding("damaged-pair", "error", error.what, error.where, evidence, error.mend)


def _short_by_one(bin_path: Path, idx_path: Path) -> int | None:
    try:
        raw = np.fromfile(idx_path, np.uint8)
        n, b = (int.from_bytes(raw[at : at + 8].tobytes(), "little") for at in (18, 26))
        if len(raw) != tokenfile.HEADER + 12 * n + 8 * b or n == 0:
            return None
        total = int(raw[34 : 34 + 4 * n].view("<i4").sum(dtype=np.int64))
        itemsize = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}[int(raw[17])]
        return n if bin_path.stat().st_size == (total + n) * itemsize else None
    except (OSError, KeyError, ValueError):
        return None


def _lengths(file: TokenFile, declared: Declared) -> list[Finding]:
    """pythia#136, #127, #76: which of the published files is in training order?"""
    if len(file) == 0:
        return [Finding("no-sequence", "error", "the file holds no sequence", file.prefix, {}, "tokenise again")]
    low, high = int(file.lengths.min()), int(file.lengths.max())
    evidence: dict[str, Any] = {
        "sequences": len(file),
        "shortest": low,
        "longest": high,
        "boundaries": len(file.boundaries),
    }
    if low == high and len(file) > 1:
        what = f"all {len(file):,} sequences have {high:,} tokens: pre-shuffled, entry i is sample i of seq_len {high - 1:,}"
        wrong = declared.preshuffled is False
        return [
            Finding(
                "preshuffled",
                "error" if wrong else "info",
                what,
                file.prefix,
                evidence,
                "read it with the order `preshuffled`: shuffling or repacking it again gives another run",
            )
        ]
    what = f"sequences of {low:,} to {high:,} tokens: corpus order, an order must be applied"
    wrong = declared.preshuffled is True
    findings = [
        Finding(
            "corpus-order",
            "error" if wrong else "info",
            what,
            file.prefix,
            evidence,
            "use the order neox or megatron with the seed of the run",
        )
    ]
    empty = int((np.asarray(file.lengths) == 0).sum())
    if empty:
        findings.append(
            Finding(
                "empty-sequences",
                "warning",
                f"{empty:,} sequences have no token",
                file.prefix,
                {"empty": empty},
                "they are never read; writers upstream drop them",
            )
        )
    return findings


def _ids(file: TokenFile, declared: Declared) -> list[Finding]:
    """pythia#175, #123: declared end marks that do not occur; ids beyond the vocabulary."""
    if not file.n_tokens:
        return []
    seen = measured(file.tokens, declared.eod_id)
    low, high = seen.least, seen.largest
    evidence: dict[str, Any] = {
        "tokens_looked_at": seen.tokens,
        "tokens": file.n_tokens,
        "least_id": low,
        "largest_id": high,
    }
    part = f"{seen.tokens:,}" + (f" of {file.n_tokens:,}" if seen.tokens < file.n_tokens else "")
    findings = [Finding("ids", "info", f"ids {low:,} to {high:,} in {part} tokens", file.prefix, evidence)]
    if declared.vocab_size is not None and high >= declared.vocab_size:
        findings.append(
            Finding(
                "id-beyond-vocabulary",
                "error",
                f"id {high:,} occurs, the vocabulary has {declared.vocab_size:,}",
                file.prefix,
                evidence,
                "name the tokenizer that made the file, or its dtype",
            )
        )
    if declared.vocab_size is not None and 65500 <= declared.vocab_size <= 65536:
        findings.append(
            Finding(
                "dtype-gap",
                "warning",
                f"a vocabulary of {declared.vocab_size:,} is written as int32, and read as "
                "uint16 by Megatron-core's path that does not read the header",
                file.prefix,
                {"dtype": file.tokens.dtype.name},
                "do not use that path for this file",
            )
        )
    if declared.eod_id is not None:
        findings.append(_eod_rate(file, seen, declared.eod_id, evidence))
    return findings


def _eod_rate(file: TokenFile, seen: Measured, eod_id: int, evidence: dict[str, Any]) -> Finding:
    count = seen.ends
    expected = seen.tokens * len(file) / max(file.n_tokens, 1)
    evidence = {**evidence, "eod_id": eod_id, "occurrences": count, "expected_for_one_a_sequence": round(expected, 1)}
    rate = f"EOD id {eod_id} occurs {count:,} times in {seen.tokens:,} tokens looked at"
    if count == 0:
        return Finding(
            "eod-absent",
            "error",
            f"{rate}; declared: after every document. Documents cannot be told apart in this file",
            file.prefix,
            evidence,
            "declare that there is no EOD, or tokenise again with one",
        )
    if int(file.lengths.min()) != int(file.lengths.max()) and not 0.8 <= count / max(expected, 1e-9) <= 1.25:
        return Finding(
            "eod-rate",
            "warning",
            f"{rate}, one a sequence would be {expected:,.0f}",
            file.prefix,
            evidence,
            "check the end policy of the tokenising run",
        )
    return Finding("eod-rate", "info", rate, file.prefix, evidence)


def _ends(file: TokenFile, declared: Declared) -> list[Finding]:
    """datatrove#345, PR#489; litgpt#706: the last id of sequences against the declared end."""
    expected = declared.tokenizer_eos if declared.tokenizer_eos is not None else declared.eod_id
    lengths = np.asarray(file.lengths)
    if expected is None or not len(lengths) or (lengths.min() == lengths.max() and len(lengths) > 1):
        return []
    chosen = np.flatnonzero(lengths > 0)
    chosen = chosen[:: max(1, len(chosen) // 10_000)]
    last = file.tokens[np.asarray(file.offsets)[chosen] // file.tokens.dtype.itemsize + lengths[chosen] - 1]
    values, counts = np.unique(last, return_counts=True)
    common, share = int(values[counts.argmax()]), float(counts.max() / counts.sum())
    ended = float((last == expected).mean())
    evidence = {
        "sequences_looked_at": len(chosen),
        "share_that_ends_with_it": round(ended, 4),
        "commonest_last_id": common,
        "its_share": round(share, 4),
    }
    if ended >= 0.99:
        return []
    if share >= 0.99:
        return [
            Finding(
                "other-end-id",
                "error",
                f"documents end with id {common}, the declared end is {expected}",
                file.prefix,
                evidence,
                "declare the end that the file has, or tokenise again",
            )
        ]
    return [
        Finding(
            "no-separator",
            "warning",
            f"{100 * ended:.1f}% of the documents end with id {expected}: packed documents run into each other",
            file.prefix,
            evidence,
            "tokenise again with an end mark, or declare none",
        )
    ]


def _begins(file: TokenFile) -> list[Finding]:
    """lm-evaluation-harness#1465: a model trained with a begin token must be given it, so it must be known that it is there."""
    lengths = np.asarray(file.lengths)
    chosen = np.flatnonzero(lengths > 0)
    chosen = chosen[:: max(1, len(chosen) // 10_000)]
    if len(chosen) < 2 or lengths.min() == lengths.max():
        return []
    first = file.tokens[np.asarray(file.offsets)[chosen] // file.tokens.dtype.itemsize]
    values, counts = np.unique(first, return_counts=True)
    share = float(counts.max() / counts.sum())
    if share < 0.99:
        return []
    begin = int(values[counts.argmax()])
    evidence = {"sequences_looked_at": len(chosen), "first_id": begin, "share": round(share, 4)}
    return [Finding("begin-id", "info", f"documents begin with id {begin}: give it at the start of every context when scoring",
                    file.prefix, evidence)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What the ids of a file are: of all of it, or of a sample."""

    tokens: int  # looked at
    least: int
    largest: int
    ends: int  # how many are the end mark


def measured(tokens: NDArray[Any], eod_id: int | None) -> Measured:
    """All tokens of a file of up to WHOLE_TOKENS, else 4e6 of them in blocks spread over the whole file."""
    if len(tokens) <= WHOLE_TOKENS:
        blocks = [(first, _BLOCK) for first in range(0, len(tokens), _BLOCK)]
    else:
        starts = np.linspace(0, len(tokens) - _SAMPLED_BLOCK, _SAMPLED_BLOCKS).astype(np.int64)
        blocks = [(first, _SAMPLED_BLOCK) for first in starts.tolist()]
    parts = [np.asarray(tokens[first : first + size]) for first, size in blocks]
    ends = 0 if eod_id is None else sum(int(np.count_nonzero(part == eod_id)) for part in parts)
    return Measured(
        sum(map(len, parts)), int(min(part.min() for part in parts)), int(max(part.max() for part in parts)), ends
    )
