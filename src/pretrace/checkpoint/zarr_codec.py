"""The bytes of a zarr chunk, decoded as a stream: a chunk of any size passes through a buffer of 1 MiB.

Raw, zstd, gzip and zlib are decoded here; any other codec by tensorstore, which takes the chunk as a whole.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.zarr_array import ZarrArray, tensorstore
from pretrace.dtypes import dtype

PIECE = 1 << 20  # bytes; a multiple of every item size
_READ = 1 << 18  # compressed bytes at a time


def in_file_order(array: ZarrArray) -> bool:
    """Whether the file of a chunk holds its elements as they are: any range of them can be read from it."""
    return array.codec == "raw" and not array.big_endian


def chunk_bytes(array: ZarrArray) -> int:
    """Bytes of a decoded chunk."""
    return math.prod(array.chunks) * dtype(array.dtype).itemsize


def decode_into(array: ZarrArray, stream: io.RawIOBase, where: str, out: NDArray[Any]) -> None:
    """Fills `out` (a whole chunk) with the elements in the order in which they are stored.

    Raises
    ------
    DamagedFile
        If the chunk cannot be decoded, or decodes to more or fewer bytes.
    """
    target = out.view(np.uint8).data
    for _ in _pieces(array, stream, where, lambda place, n: target[place : place + n]):
        pass


def decode_to(array: ZarrArray, stream: io.RawIOBase, where: str, write: Callable[[memoryview, int], None]) -> None:
    """Calls `write(bytes, place)` for the decoded chunk piece by piece; raises as `decode_into`."""
    buffer = memoryview(bytearray(min(PIECE, chunk_bytes(array))))
    for place, piece in _pieces(array, stream, where, lambda place, n: buffer[:n]):
        write(piece, place)


def _pieces(
    array: ZarrArray, stream: io.RawIOBase, where: str, room: Callable[[int, int], memoryview]
) -> Iterator[tuple[int, memoryview]]:
    """The decoded bytes in pieces and where each begins, each in the room (place, length) that it asks for."""
    size, done = chunk_bytes(array), 0
    decoded = _opened(array, stream, where)
    while done < size:
        piece = room(done, min(PIECE, size - done))
        n = _filled(decoded, piece, where)
        if n < len(piece):
            raise wrong_size(done + n, array, where)
        if array.big_endian and array.codec != "other":  # tensorstore hands out native numbers, whatever is stored
            np.frombuffer(piece, np.dtype(dtype(array.dtype).storage)).byteswap(inplace=True)
        yield done, piece
        done += n
    # One byte past the end is asked for: a bomb is found by its length, not by its weight.
    if _filled(decoded, memoryview(bytearray(1)), where):
        raise wrong_size(size + 1, array, where)


class _Stream(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


def _filled(stream: _Stream, piece: memoryview, where: str) -> int:
    done = 0
    try:
        while done < len(piece) and (n := stream.readinto(piece[done:])):
            done += n
    except (zstandard.ZstdError, zlib.error, EOFError) as error:
        raise DamagedFile(
            "crc", f"the chunk cannot be decompressed: {error}", where, "the chunk is damaged: fetch it again"
        ) from None
    return done


def _opened(array: ZarrArray, stream: io.RawIOBase, where: str) -> _Stream:
    if array.codec == "raw":
        return cast(_Stream, stream)
    if array.codec == "zstd":
        machine = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        return machine.stream_reader(cast(Any, stream), read_size=_READ)
    if array.codec in ("gzip", "zlib"):
        return _Inflated(stream, wbits=31 if array.codec == "gzip" else 15)
    return io.BytesIO(_by_tensorstore(array, stream, where))


class _Inflated:
    """Deflated bytes; what comes out at a time is as long as the buffer, not as the data wishes."""

    def __init__(self, raw: io.RawIOBase, wbits: int) -> None:
        self._raw, self._machine = raw, zlib.decompressobj(wbits=wbits)

    def readinto(self, buffer: memoryview, /) -> int:
        """The next decoded bytes; 0 at the end."""
        while not self._machine.eof:
            waiting = self._machine.unconsumed_tail
            data = waiting or self._raw.read(_READ)
            made = self._machine.decompress(data or b"", len(buffer))
            if made or not data:
                buffer[: len(made)] = made
                return len(made)
        return 0


def wrong_size(found: int, array: ZarrArray, where: str) -> DamagedFile:
    """The refusal of a chunk that holds another number of bytes."""
    what = f"the chunk holds {found:,} bytes, {chunk_bytes(array):,} are expected"
    return DamagedFile("size", what, where, "the chunk is damaged")


def _by_tensorstore(array: ZarrArray, stream: io.RawIOBase, where: str) -> bytes:
    """Any codec: the chunk as an array of its own in tensorstore's memory."""
    raw, size = io.BufferedReader(stream).read(), chunk_bytes(array)
    compressor = array.metadata.get("compressor")
    told = int.from_bytes(raw[4:8], "little")  # blosc's header: the size it will decompress to
    blosc = isinstance(compressor, dict) and compressor.get("id") == "blosc"
    if blosc and not array.metadata.get("filters") and told != size:
        raise DamagedFile(
            "size", f"the chunk would hold {told:,} bytes, {size:,} are expected", where, "the chunk is damaged"
        )
    ts = tensorstore(where)
    alone = {**array.metadata, "shape": list(array.chunks)}
    version = array.metadata["zarr_format"]
    # Nothing of it outlives the call: the caches of tensorstore belong to its context.
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    store = ts.KvStore.open({"driver": "memory", "path": "a/"}, context=context).result()
    store.write(".zarray" if version == 2 else "zarr.json", json.dumps(alone).encode()).result()
    store.write(array.key((0,) * len(array.chunks)), raw).result()
    spec = {"driver": "zarr" if version == 2 else "zarr3", "kvstore": {"driver": "memory", "path": "a/"}}
    try:
        made = np.asarray(ts.open(spec, context=context, open=True).result().read().result())
    except Exception as error:
        raise DamagedFile(
            "crc",
            f"the chunk cannot be decoded: {str(error)[:200]}",
            where,
            "the chunk is damaged, or its codec is unknown",
        ) from None
    return np.ascontiguousarray(made if array.order == "C" else made.T).tobytes()
