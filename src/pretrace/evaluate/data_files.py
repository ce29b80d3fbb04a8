"""Local rows for a task: `--data TASK=FILE` or `--data TASK:SPLIT=FILE`, checked before a model is loaded.

A row that lacks a key is filled with null by the loader behind the harness and then scored as the word "None": it is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
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
    n_rows: int
    digest: str


def parse(options: Iterable[str]) -> tuple[DataFile, ...]:
    """The files of `--data` options.

    Raises
    ------
    PretraceError
        If an option has no `=`, a file cannot be read, or a row of it is not like the others.
    """
    found = tuple(_parse(option) for option in options)
    for n, file in enumerate(found):
        if any((file.task, file.split) == (other.task, other.split) for other in found[:n]):
            raise PretraceError(
                f"two files for the rows of {file.task}", f"--data {file.task}=...", "name one, or join them"
            )
    return found


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
    n_rows = _check(path, LOADERS[kind], kind == ".jsonl")
    with naming(path):
        return DataFile(task, split, path, LOADERS[kind], n_rows, sha256_of_file(path))


def _check(path: Path, loader: str, by_line: bool) -> int:
    rows = list(_rows(path, loader, by_line))
    if not rows:
        raise PretraceError(f"{path.name} has no rows", str(path), "give a file with rows")
    keys = {key for _, row in rows if isinstance(row, dict) for key in row if row[key] is not None}
    faults = [(i, place, words) for i, (place, row) in enumerate(rows) if (words := _lacking(row, keys))]
    if faults:
        shown = "; ".join(f"row {i}{place}: {words}" for i, place, words in faults[:5])
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise PretraceError(
            f"{len(faults)} rows are not like the others: {shown}{more}", str(path),
            "fill them in or take them out, or take the key out of every row if no task reads it: "
            "what is missing would be scored as the word None",
        )  # fmt: skip
    return len(rows)


def _lacking(row: Any, keys: set[str]) -> str:
    if not isinstance(row, dict):
        return "no object"
    missing = sorted(key for key in keys if row.get(key) is None)
    return f"no {', '.join(missing)}" if missing else ""


def _rows(path: Path, loader: str, by_line: bool) -> Iterator[tuple[str, Any]]:
    """Rows as the loader behind the harness would see them, each with its place in words."""
    if by_line:
        for i, (number, line) in enumerate(lines(path)):
            try:
                yield f" (line {number})", json.loads(line)
            except ValueError as error:
                raise PretraceError(f"row {i} is not JSON: {error}", f"{path}: line {number}", "mend the row") from None
    elif loader == "csv":
        # An empty cell is null to the loader.
        for row in csv.DictReader(io.StringIO(_text(path))):
            yield "", {key: value or None for key, value in row.items()}
    elif loader == "parquet":
        yield from (("", row) for row in _parquet(path))
    else:
        try:
            found = json.loads(_text(path))
        except ValueError as error:
            raise PretraceError(f"{path.name} is not JSON: {error}", str(path), "mend it, or name it .jsonl") from None
        yield from (("", row) for row in (found if isinstance(found, list) else [found]))


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with naming(path):
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
            return rows
    except pyarrow.ArrowException as error:
        raise PretraceError(f"{path.name} cannot be read: {error}", str(path), "restore the file") from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered from 1."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, line


def _text(path: Path) -> str:
    with naming(path):
        data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        elif path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        return data.decode("utf-8")
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise PretraceError(f"{path.name} cannot be read: {error}", str(path), "restore the file") from None
