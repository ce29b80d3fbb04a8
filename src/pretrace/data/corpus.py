"""Corpora: documents streamed from files, folders and remote paths, one at a time, in a declared order.

What a corpus is stands in a `CorpusSpec`: the files, their format, the field that holds the text (or the ids), the split.
Reading holds one document (columnar formats: one batch of rows) in memory, whatever the size of the files.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

import pretrace.data.columnar as columnar
import pretrace.data.remote as remote
import pretrace.data.tfrecord as tfrecord
from pretrace.errors import PretraceError, from_os_error
from pretrace.spec import Spec

CorpusFormat = Literal["jsonl", "parquet", "arrow", "tfrecord", "text", "hub"]
_SUFFIXES = {
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "tfrecord": (".tfrecord", ".tfrecords"),
    "text": (".txt", ".text", ".md"),
}
_DAMAGED: tuple[type[Exception], ...] = (zlib.error, *remote.DAMAGED, *columnar.DAMAGED)
_JSON = json.JSONDecoder().decode
_COMPRESSIONS = ("", *remote.COMPRESSED)


class CorpusSpec(Spec):
    """Where documents come from. The order of `paths` is the order of the corpus; a folder is read in sorted order."""

    paths: tuple[
        str, ...
    ]  # files, folders or fsspec addresses (s3://...); for `hub`: NAME, or NAME@REVISION:CONFIGURATION
    format: CorpusFormat
    field: str  # the column or key; "" for text files
    holds: Literal["text", "ids"]  # what the field holds
    split: str = ""  # of a dataset that has splits; "" for one that has none
    id_field: str = ""  # the documents' own names; "" for FILE#ROW
    text_unit: Literal["file", "line", "paragraph"] | None = None  # what one document of a text file is

    not_hashed: ClassVar[frozenset[str]] = frozenset({"id_field"})


@dataclass(frozen=True, slots=True)
class Document:
    """One document and its place: row `row` (from 0) of `file`."""

    name: str
    file: str
    row: int
    text: str = ""
    ids: NDArray[np.int64] | None = None

    @property
    def where(self) -> str:
        """The place for messages: `books.jsonl#12`."""
        return f"{self.file}#{self.row}"


def read(spec: CorpusSpec) -> Iterator[Document]:
    """Every document of the corpus, in order.

    Raises
    ------
    PretraceError
        If a path is missing, a file is cut or is not what its format says, a row lacks the field, or the whole corpus
        holds no document.
    """
    empty = True
    for file in files_of(spec):
        for document in read_file(spec, file):
            empty = False
            yield document
    if empty:
        raise PretraceError("the corpus holds no document", ", ".join(spec.paths), "check paths, split and format")


def texts(spec: CorpusSpec) -> Iterator[Document]:
    """Every document of a corpus of texts, in order.

    Raises
    ------
    PretraceError
        If the corpus holds ids (all its texts would be empty, and so all alike); else as `read`.
    """
    if spec.holds != "text":
        raise PretraceError("the corpus holds ids, texts are needed", ", ".join(spec.paths),
                            "name the field of the text, and set holds: text")  # fmt: skip
    return read(spec)


def files_of(spec: CorpusSpec) -> tuple[str, ...]:
    """The files that are read, in order: the unit of work that is spread over processes.

    Raises
    ------
    PretraceError
        If a path does not exist or a folder holds no file of the format.
    """
    if not spec.paths:
        raise PretraceError("the corpus names no path", "data.paths", "name at least one file or folder")
    if spec.format == "hub":
        return spec.paths
    return tuple(file for path in spec.paths for file in _expand(spec, path))


def refuse_target(spec: CorpusSpec, *targets: str | Path) -> None:
    """Refuses to write over a file of the corpus.

    Raises
    ------
    PretraceError
        That names the file.
    """
    here = [file for file in files_of(spec) if not remote.is_remote(file) and spec.format != "hub"]
    for target in [os.fspath(t) for t in targets]:
        if os.path.exists(target) and any(os.path.samefile(target, file) for file in here):
            raise PretraceError("the target is a file of the corpus itself", target, "choose another name")


def _expand(spec: CorpusSpec, path: str) -> list[str]:
    if not remote.exists(path):
        raise PretraceError(f"{PurePath(path).name or path} does not exist", path, "check the path")
    if not remote.is_folder(path):
        return [path]
    if spec.format == "arrow" and remote.exists(remote.join(path, "dataset_dict.json")):
        path = remote.join(path, _need_split(spec, path))
        if not remote.exists(path):
            raise PretraceError(f"the dataset has no split {spec.split!r}", path, "name one of its folders as split")
    wanted = tuple(s + c for s in _SUFFIXES[spec.format] for c in _COMPRESSIONS)
    with explained(path):
        files = [file for file in remote.walk(path) if file.endswith(wanted) and _in_split(spec, file)]
    if not files:
        raise PretraceError(f"the folder holds no {spec.format} file", path, f"expected names that end in {wanted}")
    return files


def _need_split(spec: CorpusSpec, path: str) -> str:
    if not spec.split:
        raise PretraceError("the dataset has splits and none is declared", path, "set split")
    return spec.split


def _in_split(spec: CorpusSpec, file: str) -> bool:
    # TFDS and the hub put the split into the file name (books-train.tfrecord-00000-of-00004, train-0000.parquet).
    name = PurePath(file).name
    if name in ("dataset_info.json", "state.json", "features.json", "dataset_dict.json"):
        return False
    if name.endswith(".json") and remote.exists(file.removesuffix("json") + "idx"):
        return False  # the manifest of a pair of token files that lies in the folder
    if spec.format in ("tfrecord", "parquet") and spec.split:
        words = name.replace(".", "-").replace("_", "-").split("-")
        return spec.split in words or spec.split in PurePath(file).parts
    return True


def read_file(spec: CorpusSpec, file: str) -> Iterator[Document]:
    """The documents of one file of the corpus."""
    with explained(file):
        for row, (name, value) in enumerate(_ROWS[spec.format](spec, file)):
            yield _document(spec, file, row, name, value)


def read_lines(spec: CorpusSpec, file: str, start: int, stop: int) -> Iterator[Document]:
    """The documents of the lines that begin in bytes [start, stop) of a plain JSON-lines file; `row` is the line's first byte."""
    with explained(file), remote.open_binary(file) as stream:
        if start:
            stream.seek(start - 1)
            stream.readline()  # a line that began before belongs to the unit before
        yield from _of_lines(spec, file, iter(stream.readline, b""), stream.tell(), stop)


def parse_lines(spec: CorpusSpec, file: str, lines: bytes, start: int) -> Iterator[Document]:
    """The documents of some lines of an unpacked JSON-lines file; `row` is the line's first byte, `start` that of the first."""
    with explained(file):
        yield from _of_lines(spec, file, io.BytesIO(lines), start, start + len(lines))


def _of_lines(spec: CorpusSpec, file: str, lines: Iterable[bytes], at: int, stop: int) -> Iterator[Document]:
    for line in lines:
        if at >= stop:
            return
        if line and not line.isspace():
            name, value = _parsed(spec, line, f"{file}, byte {at}", "utf-8" if at else "utf-8-sig")
            yield _document(spec, file, at, name, value)
        at += len(line)


def read_groups(spec: CorpusSpec, file: str, first: int, stop: int) -> Iterator[Document]:
    """The documents of row groups [first, stop) of a parquet file; `row` is the row in the file."""
    with explained(file):
        for row, values in columnar.parquet_rows_of(file, _columns(spec), range(first, stop)):
            yield _document(spec, file, row, *_name_and_value(spec, values, file))


def read_parts(spec: CorpusSpec, file: str, first: int, stop: int, row: int) -> Iterator[Document]:
    """The documents of record batches [first, stop) of an Arrow file, or of bytes [first, stop) of a TFRecord file; the first is
    row `row` of the file."""
    reader = {"arrow": columnar.arrow_rows, "tfrecord": tfrecord.example_rows}[spec.format]
    with explained(file):
        for number, values in enumerate(reader(file, _columns(spec), first, stop), row):
            yield _document(spec, file, number, *_name_and_value(spec, values, file))


def _fast_json() -> Callable[[bytes], Any] | None:
    try:
        from orjson import loads
    except ImportError:  # it comes with the extra `fast`
        return None
    return loads


_FAST_JSON = _fast_json()


def _row_of(line: bytes, encoding: str) -> Any:
    """The value of a line of JSON. The fast reader is stricter than json: what it refuses is json's to decide."""
    if _FAST_JSON is not None:
        try:
            return _FAST_JSON(line)
        except ValueError:
            pass
    return _JSON(line.decode(encoding))


def _parsed(spec: CorpusSpec, line: bytes, where: str, encoding: str) -> tuple[Any, Any]:
    try:
        row = _row_of(line, encoding)
    except (ValueError, RecursionError) as error:
        raise PretraceError(f"this line is not JSON: {error}", where,
                            "restore the file, or set the format that it has") from None  # fmt: skip
    return _name_and_value(spec, row, where)


def _document(spec: CorpusSpec, file: str, row: int, name: Any, value: Any) -> Document:
    name = f"{file.rsplit('/', 1)[-1]}#{row}" if name is None else str(name)
    where = f"{file}#{row}"
    if spec.holds == "text":
        if not isinstance(value, str):
            raise PretraceError(f"field {spec.field!r} holds {type(value).__name__}, text was expected", where,
                                "name the field that holds the text, or set holds to ids")  # fmt: skip
        return Document(name, file, row, text=value)
    return Document(name, file, row, ids=_as_ids(value, spec.field, where))


def _as_ids(value: Any, field: str, where: str) -> NDArray[np.int64]:
    try:
        ids = np.asarray(value)
    except ValueError:
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise PretraceError(f"field {field!r} does not hold a list of ids", where, "name the field that holds the ids")
    if ids.size and (ids.min() < 0 or ids.max() >= 2**31):
        raise PretraceError("a token id is negative or above 2^31 - 1", where, "the field does not hold token ids")
    return ids.astype(np.int64)


def _jsonl_rows(spec: CorpusSpec, file: str) -> Iterator[tuple[Any, Any]]:
    with remote.open_stream(file) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _parsed(spec, line, f"{file}:{number}", "utf-8" if number > 1 else "utf-8-sig")


def _name_and_value(spec: CorpusSpec, row: Any, where: str) -> tuple[Any, Any]:
    for field in filter(None, (spec.field, spec.id_field)):
        if not isinstance(row, dict) or field not in row:
            has = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
            raise PretraceError(f"the row has no field {field!r}", where, f"name one of its fields: {has}")
    return (row[spec.id_field] if spec.id_field else None), row[spec.field]


def _text_rows(spec: CorpusSpec, file: str) -> Iterator[tuple[None, str]]:
    if spec.text_unit is None:
        raise PretraceError("what one document of a text file is, is not declared", file, "set text_unit")
    with remote.open_stream(file) as stream:
        if spec.text_unit == "file":
            yield None, stream.read().decode("utf-8")
            return
        part: list[str] = []
        for line in stream:
            text = line.decode("utf-8")
            if spec.text_unit == "line":
                if text.strip():
                    yield None, text.rstrip("\r\n")
            elif text.strip():
                part.append(text)
            elif part:
                yield None, "".join(part)
                part = []
        if part:
            yield None, "".join(part)


def _columns(spec: CorpusSpec) -> tuple[str, ...]:
    return tuple(filter(None, (spec.field, spec.id_field)))


def _column_rows(reader: Callable[[str, tuple[str, ...]], Iterator[dict[str, Any]]]) -> Any:
    def rows(spec: CorpusSpec, file: str) -> Iterator[tuple[Any, Any]]:
        for row in reader(file, _columns(spec)):
            yield _name_and_value(spec, row, file)

    return rows


def _hub_rows(spec: CorpusSpec, name: str) -> Iterator[tuple[Any, Any]]:
    for row in columnar.hub_rows(name, _need_split(spec, name)):
        yield _name_and_value(spec, row, name)


_ROWS: dict[str, Callable[[CorpusSpec, str], Iterator[tuple[Any, Any]]]] = {
    "jsonl": _jsonl_rows,
    "text": _text_rows,
    "parquet": _column_rows(columnar.parquet_rows),
    "arrow": _column_rows(columnar.arrow_rows),
    "tfrecord": _column_rows(tfrecord.example_rows),
    "hub": _hub_rows,
}


@contextmanager
def explained(file: str) -> Iterator[None]:
    """Turns what libraries raise on damaged files into a `PretraceError` that names the file."""
    try:
        yield
    except PretraceError:
        raise
    except EOFError as error:
        raise PretraceError(f"the file is cut: {error}", file, "restore or download it again") from error
    except UnicodeDecodeError as error:
        raise PretraceError(f"the text is not UTF-8: {error.reason} at byte {error.start}", file,
                            "convert the file to UTF-8") from error  # fmt: skip
    except _DAMAGED as error:
        raise PretraceError(f"the file is damaged: {str(error)[:200]}", file, "restore or download it again") from error
    except Exception as error:
        if remote.is_remote(file) and not isinstance(
            error, OSError
        ):  # a client of an object store, in the middle of a file
            with remote.reaching(file):
                raise
        if not isinstance(error, OSError):
            raise
        if error.errno is None:  # gzip's BadGzipFile and pyarrow's errors carry no number
            raise PretraceError(f"the file is damaged: {str(error)[:200]}", file, "restore it") from error
        raise from_os_error(error, file, doing="reading") from error
