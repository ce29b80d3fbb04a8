"""Pickles of protocol 2, written without the objects they speak of: torch's tensors, sizes and records, by name.

Opcodes: https://docs.python.org/3/library/pickletools.html. Nothing is memoised: a value that stands twice is written twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pretrace.checkpoint.links import c_strides
from pretrace.checkpoint.pickle_globals import STORAGE_NAMES


@dataclass(frozen=True, slots=True)
class Named:
    """Something that is imported: a class, a function, a dtype."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `module` called with `args`."""

    module: str
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """An instance of a class with a state: its attributes as a dict, or what its __setstate__ takes."""

    module: str
    name: str
    state: Any = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """A dict whose keys are no plain data."""

    items: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous tensor at `offset` (elements) of the storage `key` that holds `numel` elements of `dtype`."""

    key: str
    numel: int
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    location: str = "cpu"


def size(shape: tuple[int, ...]) -> Call:
    """A torch.Size."""
    return Call("torch", "Size", (tuple(shape),))


def pickled(value: Any) -> bytes:
    """The pickle of plain data and of the values above.

    >>> import pickle
    >>> pickle.loads(pickled({"a": [1, 2.5, None, True, (3, "x")], "b": -70000}))
    {'a': [1, 2.5, None, True, (3, 'x')], 'b': -70000}
    """
    return b"\x80\x02" + _put(value) + b"."


def _put(value: Any) -> bytes:
    kind = type(value)
    if value is None:
        return b"N"
    if kind is bool:
        return b"\x88" if value else b"\x89"
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if isinstance(value, Mapping):
        return _pairs(Pairs(tuple(value.items())))
    raise TypeError(f"{kind.__name__} is not written into pickles")


def _int(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _list(value: list[Any]) -> bytes:
    return b"](" + b"".join(map(_put, value)) + b"e" if value else b"]"


def _tuple(value: tuple[Any, ...]) -> bytes:
    return b"(" + b"".join(map(_put, value)) + b"t" if value else b")"


def _pairs(value: Pairs) -> bytes:
    items = b"".join(_put(k) + _put(v) for k, v in value.items)
    return b"}(" + items + b"u" if items else b"}"


def _named(value: Named) -> bytes:
    return f"c{value.module}\n{value.name}\n".encode()


def _call(value: Call) -> bytes:
    return _named(Named(value.module, value.name)) + _tuple(value.args) + b"R"


def _record(value: Record) -> bytes:
    made = _named(Named(value.module, value.name)) + b")\x81"
    return made if value.state is None else made + _put(value.state) + b"b"


def _tensor(value: Tensor) -> bytes:
    # A storage is named to the loader by a persistent id: ("storage", type, key, location, elements).
    kind = Named("torch", STORAGE_NAMES[value.dtype] + "Storage")
    storage = _put(("storage", kind, value.key, value.location, value.numel)) + b"Q"
    strides = c_strides(value.shape)
    rest = _put(value.offset) + _put(value.shape) + _put(strides) + b"\x89" + _put(Call("collections", "OrderedDict"))
    return _named(Named("torch._utils", "_rebuild_tensor_v2")) + b"(" + storage + rest + b"tR"


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    int: _int, float: lambda v: b"G" + struct.pack(">d", v), str: _text, list: _list, tuple: _tuple, Named: _named, Call: _call,
    Record: _record, Tensor: _tensor, Pairs: _pairs,
}  # fmt: skip
