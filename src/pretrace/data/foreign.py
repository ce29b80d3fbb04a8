"""Token files of other tools: llm.c shards, raw arrays (nanoGPT, OLMo), datatrove shards, Arrow rows of ids.

Each reader checks everything that the format says twice, and maps the file into memory. What a raw file holds is said
nowhere in it: its dtype is declared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrace.data.tokenfile import TokenFile
from pretrace.errors import PretraceError, naming

# magic -> (version, dtype), of llm.c's dev/data/data_common.py
LLMC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
_LLMC_HEADER = 256 * 4


def open_llmc(path: str) -> NDArray[Any]:
    """The ids of one llm.c shard: 256 i32 of header (magic, version, count), then u16 or u32.

    Raises
    ------
    PretraceError
        If magic, version or size are wrong; also for shards beyond 2 GiB, at which llm.c's own reader seeks wrongly.
    """
    with naming(path, "reading"):
        head = np.fromfile(path, "<i4", 256)
        size = os.path.getsize(path)
    if len(head) < 256 or int(head[0]) not in LLMC:
        raise PretraceError("this is not an llm.c token shard: its magic is wrong or it is cut", path, "check the path")
    version, dtype = LLMC[int(head[0])]
    if int(head[1]) != version:
        raise PretraceError(f"llm.c shard version {int(head[1])}, expected {version}", path, "write it again")
    count, itemsize = int(head[2]), np.dtype(dtype).itemsize
    if count < 0 or size != _LLMC_HEADER + count * itemsize:
        raise PretraceError(f"the shard has {size:,} bytes, its header says {_LLMC_HEADER + count * itemsize:,}", path,
                            "download or write it again")  # fmt: skip
    return np.memmap(path, dtype, "r", _LLMC_HEADER) if count else np.zeros(0, dtype)


def open_raw(path: str, dtype: str) -> NDArray[Any]:
    """The ids of a file without a header (nanoGPT's .bin, OLMo's .npy that is none).

    Raises
    ------
    PretraceError
        If the size is no multiple of the dtype, or the file has the header of a real .npy, a .idx or an llm.c shard.
    """
    with naming(path, "reading"), open(path, "rb") as file:
        head = file.read(16)
        size = os.fstat(file.fileno()).st_size
    if head[:6] == b"\x93NUMPY":
        raise PretraceError("the file has a NumPy header, raw ids were declared", path, "set format to npy")
    if len(head) >= 8 and int.from_bytes(head[:4], "little") in LLMC:
        raise PretraceError(
            "the file has the header of an llm.c shard, raw ids were declared", path, "set format to llmc"
        )
    itemsize = np.dtype(dtype).itemsize
    if size % itemsize:
        raise PretraceError(
            f"{size:,} bytes are no whole number of {dtype} ids", path, "declare its dtype, or the file is cut"
        )
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r") if size else np.zeros(0, dtype)


def open_npy(path: str) -> NDArray[Any]:
    """The ids of a one-dimensional .npy with a header.

    Raises
    ------
    PretraceError
        If the file is no such array.
    """
    array = map_npy(path, "set format to raw if it has no header")
    if array.ndim != 1:
        raise PretraceError(
            f"the array is {array.dtype} {array.shape}, a list of ids was expected", path, "check the file"
        )
    return array


def map_npy(path: str | os.PathLike[str], mend: str) -> NDArray[Any]:
    """An array of integers, memory-mapped; never a pickle.

    Raises
    ------
    PretraceError
        If the file is no .npy of integers, or is shorter than its header says.
    """
    where = os.fspath(path)
    with naming(path, "reading"), open(path, "rb"):
        pass
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the parser of damaged headers raises a dozen kinds, tokenize.TokenError among them
        raise PretraceError(f"this is not a .npy array: {str(error)[:120]}", where, mend) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        kind = getattr(array, "dtype", type(array).__name__)
        raise PretraceError(f"the file holds {kind}, integers were expected", where, mend)
    return array


def open_datatrove(path: str, dtype: str) -> TokenFile:
    """A datatrove shard: raw ids (`NAME.ds`) and u64 document ends in tokens (`NAME.ds.index`).

    Raises
    ------
    PretraceError
        If the ends do not rise to the number of ids.
    """
    tokens = open_raw(path, dtype)
    index = f"{path}.index"
    if not Path(index).is_file():
        raise PretraceError(
            "the shard has no index of document ends", index, "declare format raw to read it without documents"
        )
    with naming(index, "reading"):
        size = os.path.getsize(index)
        ends = np.fromfile(index, "<u8")
    rises = bool(np.all(ends[1:] >= ends[:-1]))
    if size % 8 or not rises or (int(ends[-1]) if len(ends) else 0) != len(tokens):
        raise PretraceError(f"the document ends do not rise to the {len(tokens):,} ids of the shard", index,
                            f"the pair is damaged, or its ids are not {dtype}")  # fmt: skip
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    lengths = (ends.astype(np.int64) - starts).astype(np.int32)
    itemsize = tokens.dtype.itemsize
    return TokenFile(path, tokens, lengths, starts * itemsize, np.arange(len(lengths) + 1))


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of ids in an Arrow file or a dataset saved by `datasets`; masks and pieces where the file has them.

    Nothing is copied on opening. The offsets of a row are checked when it is read: Arrow itself would follow a damaged one.
    """

    where: str
    columns: dict[str, tuple[pa.Array, ...]]  # name -> list arrays, one a record batch; an absent column has none
    firsts: NDArray[np.int64]  # [chunks + 1] number of each chunk's first row

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def has_pieces(self) -> bool:
        """Whether rows say what they are made of."""
        return bool(self.columns["pieces"])

    def row(self, number: int) -> NDArray[np.int64]:
        """The ids of a row."""
        values, start, stop = self._bounds("input_ids", number)
        return _integers(values, start, stop)

    def mask(self, number: int) -> NDArray[np.int64] | None:
        """The attention mask of a row, if the file has one."""
        if not self.columns["attention_mask"]:
            return None
        values, start, stop = self._bounds("attention_mask", number)
        return _integers(values, start, stop)

    def pieces_of(self, number: int) -> list[tuple[int, int, int]] | None:
        """(document, start, stop) of each piece of a row, if the file says it."""
        if not self.has_pieces:
            return None
        values, start, stop = self._bounds("pieces", number)
        fields = [_integers(values.field(k), start, stop).tolist() for k in range(3)]
        return list(zip(*fields))

    def _bounds(self, name: str, number: int) -> tuple[pa.Array, int, int]:
        chunk = int(np.searchsorted(self.firsts, number, side="right")) - 1
        array = self.columns[name][chunk]
        at = number - int(self.firsts[chunk])
        start, stop = array.offsets[at].as_py(), array.offsets[at + 1].as_py()
        values = array.values
        if not 0 <= start <= stop <= len(values):
            raise PretraceError(f"row {number:,} has offsets {start}..{stop} in {len(values):,} values of {name}", self.where,
                                "the file is damaged: prepare it again")  # fmt: skip
        return values, start, stop


def _integers(values: pa.Array, start: int, stop: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = values.slice(start, stop - start).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def open_arrow(path: str) -> ArrowRows:
    """The rows of `input_ids` of an Arrow file, or of every .arrow file of a folder in sorted order.

    Raises
    ------
    PretraceError
        If a file is damaged, has no column `input_ids` of lists, or a row is null.
    """
    from pretrace.data.columnar import arrow_batches
    from pretrace.data.corpus import CorpusSpec, explained, files_of

    spec = CorpusSpec(paths=(path,), format="arrow", field="input_ids", holds="ids")
    columns: dict[str, list[pa.Array]] = {"input_ids": [], "attention_mask": [], "pieces": []}
    for file in files_of(spec):
        with explained(file):
            for batch in arrow_batches(file, ("input_ids",), ("attention_mask", "pieces")):
                for name, column in zip(batch.schema.names, batch.columns):
                    _check_column(name, column, file)
                    columns[name].append(column)
    chunks = columns["input_ids"]
    if any(len(columns[name]) not in (0, len(chunks)) for name in columns):
        raise PretraceError("some files have attention masks or pieces, others do not", path, "write them in one way")
    firsts = np.cumsum([0, *(len(c) for c in chunks)])
    return ArrowRows(path, {name: tuple(arrays) for name, arrays in columns.items()}, firsts)


def _check_column(name: str, column: pa.Array, file: str) -> None:
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    inner: Any = column.type.value_type if lists else None
    if name == "pieces":
        names = [inner.field(k).name for k in range(inner.num_fields)] if lists and pa.types.is_struct(inner) else []
        fits = names == ["document", "start", "stop"] and all(
            pa.types.is_integer(inner.field(k).type) for k in range(3)
        )
    else:
        fits = lists and (pa.types.is_integer(inner) or (name == "attention_mask" and pa.types.is_boolean(inner)))
    if not fits:
        raise PretraceError(f"{name} holds {column.type}, lists of integers were expected", file, "check the column")
    if column.null_count or column.values.null_count:
        raise PretraceError(f"{name} holds nulls", file, "write the file without them")
