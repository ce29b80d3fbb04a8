"""TFRecord files of tf.train.Example, without TensorFlow: framing with checksums, and the few wire types an Example has.

A record is u64 length, u32 masked crc32c of those eight bytes, the data, u32 masked crc32c of the data, little-endian
(tensorflow/core/lib/io/record_writer.h). An Example is a protobuf map from names to lists of bytes, floats or int64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

import pretrace.data.remote as remote
from pretrace.errors import PretraceError

_LARGEST = 1 << 31  # a record longer than a protobuf message may be is a damaged length


def spans(file: str, unit_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Runs of whole records of about `unit_bytes` of an unpacked file: (first byte, end, number of the first record).

    Only the heads are read. At a head that is damaged the rest is one run, whose reader says what is wrong.
    """
    size, at, first, number, began = remote.size(file), 0, 0, 0, 0
    with remote.open_binary(file) as stream:
        while at + 12 <= size:
            stream.seek(at)
            length = _length(stream.read(12))
            if length is None or at + length + 16 > size:
                break
            at, number = at + length + 16, number + 1
            if at - first >= unit_bytes and at < size:
                yield first, at, began
                first, began = at, number
    yield first, size, began


def _length(head: bytes) -> int | None:
    """The length that a head gives; None if its checksum is another."""
    from pretrace.data.kernels import crc32c

    length, check = struct.unpack("<QI", head)
    return None if _masked(crc32c(np.frombuffer(head, np.uint8, 8))) != check or length > _LARGEST else int(length)


def records(file: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The records of a file, or those in bytes [start, stop) of an unpacked one; both checksums of each are checked.

    Raises
    ------
    PretraceError
        With the byte offset of the first record that is cut or damaged.
    """
    from pretrace.data.kernels import crc32c

    at = start
    with remote.open_stream(file) as stream:
        if start:
            stream.seek(start)
        while (stop is None or at < stop) and (head := stream.read(12)):
            if len(head) < 12:
                raise _damaged(file, at, "its head is cut")
            length = _length(head)
            if length is None:
                raise _damaged(file, at, "its length has a wrong checksum")
            body = stream.read(length + 4)
            if len(body) < length + 4:
                raise _damaged(file, at, "it is cut")
            data, (check,) = body[:-4], struct.unpack("<I", body[-4:])
            if _masked(crc32c(np.frombuffer(data, np.uint8))) != check:
                raise _damaged(file, at, "its data have a wrong checksum")
            yield data
            at += length + 16


def _masked(crc: int) -> int:
    return ((int(crc) >> 15 | int(crc) << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(file: str, at: int, why: str) -> PretraceError:
    return PretraceError(f"the record at byte {at:,} is damaged: {why}", file, "restore or download the file again")


def example_rows(
    file: str, columns: tuple[str, ...], start: int = 0, stop: int | None = None
) -> Iterator[dict[str, Any]]:
    """The Examples of a file, or of some bytes of it, as rows: one value is itself, several are a list (`ids`)."""
    for data in records(file, start, stop):
        try:
            features = parse_example(data)
        except (IndexError, ValueError, struct.error, RecursionError):
            raise PretraceError("a record is not a tf.train.Example", file, "check the format of the file") from None
        yield {name: _plain(values, file) for name, values in features.items() if name in columns}


def _plain(values: Any, file: str) -> Any:
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], bytes):
        return values[0].decode("utf-8")
    return values


def parse_example(data: bytes) -> dict[str, Any]:
    """Example{features=1: Features{feature=1: map<string, Feature>}} as name -> list of bytes, or an array."""
    found: dict[str, Any] = {}
    for number, features in _fields(data):
        for inner, entry in _fields(features) if number == 1 else ():
            if inner == 1:
                pair = dict(_fields(entry))
                found[bytes(pair[1]).decode("utf-8")] = _feature(pair.get(2, b""))
    return found


def _feature(data: Any) -> Any:
    for number, values in _fields(data):
        if number == 1:
            return [bytes(item) for _, item in _fields(values)]
        if number == 2:
            parts = [np.frombuffer(item, "<f4") for _, item in _fields(values)]
            return np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if number == 3:
            return _int64s(values)
    return []


def _int64s(values: Any) -> Any:
    numbers: list[int] = []
    for _, item in _fields(values):
        if isinstance(item, int):
            numbers.append(item)
            continue
        at = 0
        while at < len(item):
            number, at = _varint(item, at)
            numbers.append(number)
    return np.asarray([n - (1 << 64) if n >> 63 else n for n in numbers], np.int64)


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(view, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(view):
            raise IndexError("a field reaches beyond the record")
        yield tag >> 3, view[at : at + size]
        at += size


def _varint(view: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")
