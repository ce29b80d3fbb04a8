"""The .bin/.idx pair of Megatron-LM and GPT-NeoX: ids one after another, and where each sequence starts.

All integers little-endian. `.idx`: 9 bytes magic, u64 version 1, u8 dtype code, u64 N sequences, u64 B boundary entries, i32
lengths[N], i64 byte offsets[N], i64 boundaries[B]; Megatron-core may add N mode bytes. `.bin`: the ids, nothing else.
"Sequence" is what the index builders call a document. The readers upstream check magic, version and code only; this one
checks everything that the file says twice, before the first token is used.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrace.errors import PretraceError, naming
from pretrace.files import sync_folder, temporary_name

MAGIC = b"MMIDIDX\x00\x00"
HEADER = 34
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Codes 6 and 7 mean f64, f32 to Megatron-core and f32, f64 to NeoX; neither holds token ids, so the producer must be named.
_FLOATS = {"megatron": {6: "<f8", 7: "<f4"}, "neox": {6: "<f4", 7: "<f8"}}
Producer = Literal["megatron", "neox"]
_CHUNK = 1 << 22


def token_dtype(vocab_size: int) -> str:
    """The dtype that NeoX's and Megatron's writers choose: uint16 below 65,500 entries, else int32."""
    return "uint16" if vocab_size < 65500 else "int32"


def paths_of(prefix: str | Path) -> tuple[Path, Path]:
    """The two files of a prefix; one of their names stands for the prefix too."""
    name = os.fspath(prefix)
    for suffix in (".bin", ".idx"):
        name = name.removesuffix(suffix)
    return Path(name + ".bin"), Path(name + ".idx")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """An open pair. Everything is memory-mapped: opening costs the checks, not the data."""

    prefix: str
    tokens: NDArray[Any]  # [T] ids in the stored dtype
    lengths: NDArray[np.int32]  # [N] tokens of each sequence
    offsets: NDArray[np.int64]  # [N] first byte of each sequence in the data file
    boundaries: NDArray[np.int64]  # [B] 0, then the sequence count at each end of document
    modes: NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_tokens(self) -> int:
        """All tokens of the pair."""
        return len(self.tokens)

    def sequence(self, number: int) -> NDArray[Any]:
        """The ids of one sequence, [length]."""
        if not 0 <= number < len(self.lengths):
            raise PretraceError(f"there is no document {number:,}", self.prefix, f"name one of 0..{len(self) - 1:,}")
        start = self.start(number)
        return self.tokens[start : start + int(self.lengths[number])]

    def start(self, number: int) -> int:
        """The place of a sequence's first token in `tokens`."""
        return int(self.offsets[number]) // self.tokens.dtype.itemsize

    def n_tokens_of(self, numbers: range) -> int:
        """Tokens of a run of sequences (they stand one after another)."""
        if len(numbers) == 0:
            return 0
        end = self.start(numbers.stop) if numbers.stop < len(self) else self.n_tokens
        return end - self.start(numbers.start)


def open_pair(prefix: str | Path, *, producer: Producer | None = None) -> TokenFile:
    """Opens and checks a pair.

    Raises
    ------
    PretraceError
        If a file is missing, is not of this format, is longer or shorter than its header says, or contradicts itself.
        Dtype codes 6 and 7 are refused unless `producer` says whose they are (and then, as floats, as ids).
    """
    bin_path, idx_path = paths_of(prefix)
    return open_files(bin_path, idx_path, str(bin_path.with_suffix("")), producer=producer)


def open_files(bin_path: str | Path, idx_path: str | Path, name: str, *, producer: Producer | None = None) -> TokenFile:
    """As `open_pair`, for two files that need not lie side by side; `name` is what messages call the pair."""
    bin_path, idx_path = Path(bin_path), Path(idx_path)
    for path in (idx_path, bin_path):
        if not path.is_file():
            raise PretraceError(f"{path.name} is missing", str(path), "a pair is two files: PREFIX.bin and PREFIX.idx")
    with naming(idx_path, "reading"):
        dtype, n, b = _header(idx_path, producer)
        lengths, offsets, boundaries, modes = _arrays(idx_path, n, b)
    n_tokens = check_index(idx_path, dtype, lengths, offsets, boundaries)
    with naming(bin_path, "reading"):
        size, expected = bin_path.stat().st_size, n_tokens * dtype.itemsize
        if size != expected:
            raise PretraceError(
                f"the data file has {size:,} bytes, its index says {expected:,}: it is "
                + ("cut" if size < expected else "longer than its index"),
                str(bin_path), "download or write the pair again")  # fmt: skip
        tokens = np.memmap(bin_path, dtype, "r") if size else np.zeros(0, dtype)
    return TokenFile(name, tokens, lengths, offsets, boundaries, modes)


def _header(path: Path, producer: Producer | None) -> tuple[np.dtype[Any], int, int]:
    with open(path, "rb") as file:
        head = file.read(HEADER)
    where = str(path)
    if head[:8] == b"TNTIDX\x00\x00":
        raise PretraceError("this is the older fairseq index (TNTIDX), without memory mapping", where,
                            "convert it with the tool that wrote it")  # fmt: skip
    if head[:9] != MAGIC or len(head) < HEADER:
        raise PretraceError("this is not a .idx file: its magic is wrong or it is cut", where, "check the path")
    version = int.from_bytes(head[9:17], "little")
    if version != 1:
        raise PretraceError(f"index version {version}, only 1 exists", where, "the file is damaged")
    code = head[17]
    names = _CODES | (_FLOATS[producer] if producer else {})
    if code not in names:
        mend = "name the producer (neox or megatron) if it holds floats" if code in (6, 7) else "the file is damaged"
        raise PretraceError(f"dtype code {code} is not one of token ids", where, mend)
    dtype = np.dtype(names[code])
    if dtype.kind == "f":
        raise PretraceError(f"the pair holds {dtype.name} numbers, not token ids", where, "check which file this is")
    n, b = int.from_bytes(head[18:26], "little"), int.from_bytes(head[26:34], "little")
    size, whole = path.stat().st_size, HEADER + 12 * n + 8 * b
    if size not in (whole, whole + n):
        raise PretraceError(f"the index has {size:,} bytes, its header says {whole:,} ({n:,} sequences, {b:,} boundaries)",
                            where, "download or write the pair again")  # fmt: skip
    if b == 0:
        raise PretraceError("the index has no boundary array (its first entry is always 0)", where, "write it again")
    return dtype, n, b


def _arrays(path: Path, n: int, b: int) -> tuple[Any, Any, Any, Any]:
    raw = np.memmap(path, np.uint8, "r")
    cut = [HEADER, HEADER + 4 * n, HEADER + 12 * n, HEADER + 12 * n + 8 * b]
    modes = raw[cut[3] :].view(np.int8) if len(raw) > cut[3] else None
    return raw[cut[0] : cut[1]].view("<i4"), raw[cut[1] : cut[2]].view("<i8"), raw[cut[2] : cut[3]].view("<i8"), modes


def read_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """dtype, lengths, offsets and boundaries of an index whose header fits its size; the arrays are not checked."""
    with naming(path, "reading"):
        dtype, n, b = _header(path, None)
        lengths, offsets, boundaries, _ = _arrays(path, n, b)
    return dtype, np.array(lengths), offsets, boundaries


def check_index(path: Path, dtype: np.dtype[Any], lengths: Any, offsets: Any, boundaries: Any) -> int:
    """Checks that offsets are the running sum of lengths and boundaries run from 0 to N; returns the tokens in all.

    In blocks: an index of 1e8 sequences is checked within a few MiB of memory.
    """
    total = 0
    for first in range(0, len(lengths), _CHUNK):
        part = np.asarray(lengths[first : first + _CHUNK])
        if part.min() < 0:
            raise PretraceError(f"sequence {first + int(np.argmin(part)):,} has a negative length", str(path),
                                "the index is damaged: write or download it again")  # fmt: skip
        ends = np.cumsum(part, dtype=np.int64)
        expected = (total + ends - part) * dtype.itemsize
        wrong = np.flatnonzero(offsets[first : first + _CHUNK] != expected)
        if len(wrong):
            k = int(wrong[0])
            raise _wrong_offset(path, first + k, int(offsets[first + k]), int(expected[k]))
        total += int(ends[-1])
    steps_back = any(
        bool(np.any(np.diff(boundaries[first : first + _CHUNK + 1]) < 0)) for first in range(0, len(boundaries), _CHUNK)
    )
    # One entry alone (the initial 0) is what merged and pre-shuffled files have: nobody called "end document".
    if boundaries[0] != 0 or steps_back or (len(boundaries) > 1 and boundaries[-1] != len(lengths)):
        raise PretraceError(f"the boundary array does not run from 0 to {len(lengths):,}", str(path),
                            "the index is damaged: write or download it again")  # fmt: skip
    return total


def _wrong_offset(path: Path, number: int, found: int, expected: int) -> PretraceError:
    # Megatron-LM#1672: a 32-bit accumulator wraps once merged data pass 2^31 bytes; the lengths are still right.
    wrapped = expected >= 2**31 and (found - expected) % 2**32 == 0
    return PretraceError(
        f"the offset of sequence {number:,} is {found:,}, its lengths give {expected:,}"
        + (": written by a version whose offsets overflow at 2 GiB" if wrapped else ""),
        str(path),
        "the lengths are intact: rebuild the offsets with `pretrace data repair PREFIX`" if wrapped
        else "the index is damaged: write or download the pair again")  # fmt: skip


class Writer:
    """Writes a pair as documents come; it appears, whole, when the `writing` block ends."""

    def __init__(self, data: IO[bytes], dtype: str) -> None:
        self._data, self._dtype, self._info = data, np.dtype(dtype), np.iinfo(dtype)
        self._lengths, self._n_tokens = array("i"), 0

    def add(self, ids: NDArray[Any], where: str = "") -> None:
        """Appends one document (which is one sequence).

        Raises
        ------
        PretraceError
            If an id does not fit the dtype, or the document has more than 2^31 - 1 tokens.
        """
        if ids.size and (int(ids.min()) < self._info.min or int(ids.max()) > self._info.max):
            raise PretraceError(f"id {int(ids.max())} does not fit {self._dtype.name}", where, "use int32 token files")
        self._add_raw(np.ascontiguousarray(ids, self._dtype).tobytes(), np.asarray([ids.size]), where)

    def add_block(self, data: NDArray[Any], lengths: NDArray[Any]) -> None:
        """Appends many documents at once: their ids one after another, already in the dtype, and their lengths."""
        if data.dtype != self._dtype or int(np.sum(lengths, dtype=np.int64)) != data.size:
            raise ValueError("a block has another dtype, or its lengths do not sum to its size")
        self._add_raw(np.ascontiguousarray(data).view(np.uint8), lengths, "")

    def add_file(self, path: Path, lengths: NDArray[Any]) -> None:
        """Appends documents whose ids lie in a file of the same dtype, one after another.

        Raises
        ------
        PretraceError
            If the file does not have the size that the lengths give.
        """
        total = int(np.sum(lengths, dtype=np.int64))
        if path.stat().st_size != total * self._dtype.itemsize:
            raise PretraceError(
                f"{path.name} has another size than its lengths give", str(path), "remove it and start again"
            )
        _append(path, self._data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, "<i4").tobytes())
        self._n_tokens += total

    def _add_raw(self, raw: Any, lengths: NDArray[Any], where: str) -> None:
        if lengths.size and int(lengths.max()) > 2**31 - 1:
            raise PretraceError("a document has more than 2^31 - 1 tokens, its length does not fit the index", where)
        self._data.write(raw)
        self._lengths.frombytes(np.ascontiguousarray(lengths, "<i4").tobytes())
        self._n_tokens += int(np.sum(lengths, dtype=np.int64))

    @property
    def n_documents(self) -> int:
        """Documents so far."""
        return len(self._lengths)

    @property
    def n_tokens(self) -> int:
        """Tokens so far."""
        return self._n_tokens

    def index(self) -> Iterator[bytes]:
        """The bytes of the .idx file, every document its own sequence."""
        return index_bytes(self._dtype, np.frombuffer(self._lengths, np.int32))


def _append(path: Path, out: IO[bytes]) -> None:
    """Appends the bytes of a file: inside the kernel where both file systems can, else through this process."""
    out.flush()
    with open(path, "rb", buffering=0) as file:
        try:
            while os.copy_file_range(file.fileno(), out.fileno(), 1 << 30):
                pass
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, None):
                raise
        except AttributeError:  # a system without the call
            pass
        while block := file.read(_CHUNK):
            out.write(block)


def index_bytes(dtype: np.dtype[Any], lengths: NDArray[Any], boundaries: NDArray[Any] | None = None) -> Iterator[bytes]:
    """The bytes of an .idx file; without `boundaries` every sequence is a document."""
    code = next(c for c, name in _CODES.items() if np.dtype(name) == dtype)
    n = len(lengths)
    bounds = np.arange(n + 1, dtype="<i8") if boundaries is None else boundaries.astype("<i8")
    yield (
        MAGIC + (1).to_bytes(8, "little") + bytes([code]) + n.to_bytes(8, "little") + len(bounds).to_bytes(8, "little")
    )
    yield np.ascontiguousarray(lengths, "<i4").tobytes()
    offsets = np.zeros(n, "<i8")
    if n:
        np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    offsets *= dtype.itemsize
    yield offsets.tobytes()
    yield bounds.tobytes()


@contextmanager
def writing(prefix: str | Path, dtype: str) -> Iterator[Writer]:
    """A writer whose pair appears at `prefix` when the block ends without an exception: .bin first, .idx last.

    Raises
    ------
    PretraceError
        If the disk is full or the folder cannot be written; nothing is left behind, and no .idx stands beside a half .bin.
    """
    bin_path, idx_path = paths_of(prefix)
    temporary = temporary_name(bin_path), temporary_name(idx_path)
    try:
        with naming(bin_path, "writing"):
            bin_path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary[0], "wb", buffering=_CHUNK) as data:
                writer = Writer(data, dtype)
                yield writer
                data.flush()
                os.fsync(data.fileno())
            with open(temporary[1], "wb") as index:
                for part in writer.index():
                    index.write(part)
                index.flush()
                os.fsync(index.fileno())
            # A kill between the renames must not leave an old index beside new data.
            idx_path.unlink(missing_ok=True)
            os.replace(temporary[0], bin_path)
            os.replace(temporary[1], idx_path)
            sync_folder(bin_path.parent)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def write_pair(prefix: str | Path, documents: Iterator[NDArray[Any]] | list[NDArray[Any]], dtype: str) -> None:
    """Writes the documents as one pair, atomically."""
    with writing(prefix, dtype) as writer:
        for number, ids in enumerate(documents):
            writer.add(np.asarray(ids), f"document {number}")
