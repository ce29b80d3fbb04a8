"""Local rows for a task: `--data TASK=FILE` or `--data TASK:SPLIT=FILE`, checked before a model is loaded.

A row that lacks a key is filled with null by the loader behind the harness and then scored as the word "None": it is refused.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from pretrace.digest import sha256_of_file
from pretrace.errors import PretraceError, naming

LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
PACKED = (".gz", ".zst")

# Rows of the sets that published figures are of, and where the number stands.
PUBLISHED_ROWS: Mapping[str, tuple[int, str]] = {
    "lambada_openai": (5153, "EleutherAI/lambada_openai, test"),
    "hellaswag": (10042, "Rowan/hellaswag, validation"),
    "wikitext": (62, "EleutherAI/wikitext_document_level, wikitext-2-raw-v1, test (documents)"),
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in the place of one split of a task ("" is the split that is scored)."""

    task: str
    split: str
    path: Path
    loader: str
    n_rows: int | None  # None where rows are counted by the loader only
    digest: str


def parse(options: Iterable[str]) -> tuple[DataFile, ...]:
    """The files of `--data` options.

    Raises
    ------
    PretraceError
        If an option has no `=`, a file cannot be read, or a row of it is not like the others.
    """
    return tuple(_parse(option) for option in options)


def _parse(option: str) -> DataFile:
    name, equals, file = option.partition("=")
    task, _, split = name.partition(":")
    if not equals or not task or not file:
        raise PretraceError("local rows are named as TASK=FILE", option, "write --data hellaswag=rows.jsonl")
    path = Path(file)
    kind = path.with_suffix("").suffix if path.suffix in PACKED else path.suffix
    if kind not in LOADERS:
        raise PretraceError(f"{path.name}: rows of the kind {kind or '(none)'} are not read", file,
                            f"give one of {', '.join(LOADERS)}, the first two also as .gz or .zst")  # fmt: skip
    n_rows = None
    if LOADERS[kind] == "json" and kind == ".jsonl":
        n_rows = _check(path)
    with naming(path):
        return DataFile(task, split, path, LOADERS[kind], n_rows, sha256_of_file(path))


def _check(path: Path) -> int:
    rows: list[tuple[int, Any]] = []
    for number, line in lines(path):
        try:
            rows.append((number, json.loads(line)))
        except ValueError as error:
            raise PretraceError(
                f"row {len(rows)} is not JSON: {error}", f"{path}: line {number}", "mend the row"
            ) from None
    if not rows:
        raise PretraceError(f"{path.name} has no rows", str(path), "give a file with rows")
    counts = Counter(key for _, row in rows if isinstance(row, dict) for key in row)
    # A key that half of the rows have is one that the task reads.
    usual = {key for key, count in counts.items() if count * 2 >= len(rows)}
    faults = [(i, number, _lacking(row, usual)) for i, (number, row) in enumerate(rows) if _lacking(row, usual)]
    if faults:
        shown = "; ".join(f"row {i} (line {number}): {words}" for i, number, words in faults[:5])
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise PretraceError(f"{len(faults)} rows cannot be scored: {shown}{more}", str(path),
                            "mend these rows or take them out: a missing key would be scored as the word None")  # fmt: skip
    return len(rows)


def _lacking(row: Any, usual: set[str]) -> str:
    if not isinstance(row, dict):
        return "no object"
    missing = sorted(key for key in usual if row.get(key) is None)
    return f"no {', '.join(missing)}" if missing else ""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered from 1."""
    with naming(path), open(path, "rb") as raw:
        try:
            data = raw.read()
            if path.suffix == ".gz":
                data = gzip.decompress(data)
            elif path.suffix == ".zst":
                data = zstandard.ZstdDecompressor().stream_reader(data).read()
            text = data.decode("utf-8")
        except (gzip.BadGzipFile, EOFError, zstandard.ZstdError, UnicodeDecodeError) as error:
            raise PretraceError(f"{path.name} cannot be read: {error}", str(path), "restore the file") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line
