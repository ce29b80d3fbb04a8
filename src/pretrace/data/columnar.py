"""Parquet and Arrow: rows of a few columns, one batch in memory at a time. Also names of the hub, when on line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import pretrace.data.remote as remote
from pretrace.errors import PretraceError

DAMAGED: tuple[type[Exception], ...] = (pa.ArrowException,)
_ROWS_AT_ONCE = 256


def parquet_rows(file: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, `columns` only."""
    import pyarrow.parquet as pq

    with remote.open_binary(file) as raw, pq.ParquetFile(raw) as parquet:
        _need(columns, parquet.schema_arrow.names, file)
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
            yield from batch.to_pylist()


def parquet_groups(file: str) -> list[int]:
    """The bytes of every row group of a parquet file, as stored."""
    import pyarrow.parquet as pq

    with remote.open_binary(file) as raw, pq.ParquetFile(raw) as parquet:
        groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
        return [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]


def parquet_rows_of(file: str, columns: tuple[str, ...], groups: range) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of some row groups with their numbers in the file, `columns` only."""
    import pyarrow.parquet as pq

    with remote.open_binary(file) as raw, pq.ParquetFile(raw) as parquet:
        _need(columns, parquet.schema_arrow.names, file)
        row = sum(parquet.metadata.row_group(i).num_rows for i in range(groups.start))
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=list(groups), columns=list(columns)):
            yield from enumerate(batch.to_pylist(), row)
            row += batch.num_rows


def arrow_groups(file: str) -> list[tuple[int, int]]:
    """Bytes and rows of every record batch of an Arrow file on this machine; only their heads are read."""
    return [(batch.nbytes, batch.num_rows) for batch in _batches(pa.memory_map(file), (), file)]


def arrow_rows(
    file: str, columns: tuple[str, ...], first: int = 0, stop: int | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow file, or of its record batches [first, stop): `datasets`' stream, or the format with a footer."""
    for batch in itertools.islice(arrow_batches(file, columns), first, stop):
        batch.validate(full=True)  # an offset that points beyond its buffer would be read without a check
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from batch.slice(start, _ROWS_AT_ONCE).to_pylist()


def arrow_batches(file: str, columns: tuple[str, ...], also: tuple[str, ...] = ()) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file: `columns`, and of `also` what there is (memory-mapped when the file is here)."""
    source: Any = remote.open_binary(file) if remote.is_remote(file) else pa.memory_map(file)
    for batch in _batches(source, columns, file):
        batch.validate()
        yield batch.select([*columns, *(name for name in also if name in batch.schema.names)])


def _batches(source: Any, columns: tuple[str, ...], file: str) -> Iterator[pa.RecordBatch]:
    with source:
        head = source.read(6)
        source.seek(0)
        reader = pa.ipc.open_file(source) if head == b"ARROW1" else pa.ipc.open_stream(source)
        _need(columns, reader.schema.names, file)
        yield from (
            (reader.get_batch(i) for i in range(reader.num_record_batches)) if head == b"ARROW1" else iter(reader)
        )


def hub_name(text: str) -> tuple[str, str | None, str | None]:
    """Name, revision and configuration of a dataset of the hub.

    >>> hub_name("HuggingFaceFW/fineweb-edu@v1.2:sample-10BT")
    ('HuggingFaceFW/fineweb-edu', 'v1.2', 'sample-10BT')
    >>> hub_name("wikitext")
    ('wikitext', None, None)
    """
    rest, _, config = text.partition(":")
    name, _, revision = rest.partition("@")
    return name, revision or None, config or None


def hub_rows(text: str, split: str) -> Iterator[dict[str, Any]]:
    """The rows of a dataset of the hub (NAME@REVISION:CONFIGURATION), streamed; needs the network and the package `datasets`."""
    name, revision, config = hub_name(text)
    try:
        from datasets import load_dataset
    except ImportError:
        raise PretraceError("names of the hub need the package datasets", name, "pip install pretrace[data]") from None
    try:
        yield from load_dataset(name, config, revision=revision, split=split, streaming=True)
    except Exception as error:  # the library raises dozens of kinds for one reason: it cannot reach or read the dataset
        raise PretraceError(f"the dataset cannot be loaded: {str(error)[:200]}", f"{name} ({split})",
                            "check name, split and network, or save it to disk and name the folder") from error  # fmt: skip


def _need(columns: tuple[str, ...], has: list[str], file: str) -> None:
    for column in columns:
        if column not in has:
            raise PretraceError(f"the file has no column {column!r}", file, f"name one of: {', '.join(has)}")
