"""A pickle machine that runs nothing: opcodes in, plain data out.

Every opcode of protocols 0 to 5 is executed on plain values. Names become functions of `pickle_globals` or inert stubs;
no module is imported, no object is called, no attribute is set on anything but a stub. Memory is bounded by the size of
the pickle: lengths are checked against the bytes that are there, the memo holds what was stored, dictionaries take flat keys
only (the hash of a tuple of tuples can take exponential time).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.pickle_globals import Global, Refused, StorageRef, StorageType, Stub, inert, known

MAX_BYTES = 64 << 20
MAX_OPCODES = 8_000_000
MAX_INTEGER_BYTES = 64

_MARK = object()


class Truncated(Exception):
    """The pickle goes on after the bytes that are there."""


@dataclass(slots=True)
class Unpickled:
    """The value, where the pickle ended, and the names in it that are not allowed."""

    value: Any
    end: int
    refused: list[Global] = field(default_factory=list)


def unpickle(data: bytes, where: str, start: int = 0) -> Unpickled:
    """The plain value of the pickle that starts at byte `start`.

    Raises
    ------
    DamagedFile
        Code `pickle-...`, with file and byte, if it is no pickle or asks for what no checkpoint needs.
    Truncated
        If the data ends inside of it.
    """
    machine = _Machine(data, start, where)
    try:
        value = machine.run()
    except (IndexError, struct.error):
        if machine.at >= len(data):
            raise Truncated from None
        raise machine.bad("stack", "an opcode finds nothing to work on") from None
    except Refused as error:
        raise machine.bad("call", str(error)) from None
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise machine.bad("value", f"a malformed value ({type(error).__name__})") from None
    return Unpickled(value, machine.at, machine.refused)


class _Machine:
    def __init__(self, data: bytes, start: int, where: str) -> None:
        self.data, self.at, self.where = data, start, where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.refused: list[Global] = []
        self.op_at = start

    def run(self) -> Any:
        data, ops = self.data, _OPCODES
        for _ in range(MAX_OPCODES):
            if self.at >= len(data):
                raise Truncated
            self.op_at = self.at
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x2E:  # STOP
                return self.stack.pop()
            handler = ops.get(opcode)
            if handler is None:
                raise self.bad("opcode", f"the opcode {opcode:#04x} is not executed")
            handler(self)
        raise self.bad("size", f"more than {MAX_OPCODES:,} opcodes")

    def bad(self, rule: str, what: str) -> DamagedFile:
        return DamagedFile(f"pickle-{rule}", f"the pickle holds {what} at byte {self.op_at}", self.where,
                           "do not load this file with torch.load; fetch it again from its author", byte=self.op_at)  # fmt: skip

    # -- bytes of the stream

    def take(self, n: int) -> bytes:
        if n < 0 or n > MAX_BYTES:
            raise self.bad("length", f"a length of {n}")
        if self.at + n > len(self.data):
            self.at = len(self.data)
            raise Truncated
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize(form)))[0])

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            self.at = len(self.data)
            raise Truncated
        made = self.data[self.at : end]
        self.at = end + 1
        return made

    def integer(self, raw: bytes) -> int:
        if len(raw) > MAX_INTEGER_BYTES:
            raise self.bad("integer", f"an integer of {len(raw)} bytes")
        return int.from_bytes(raw, "little", signed=True)

    # -- the stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError
        return value

    def to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    # -- names and calls

    def named(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.bad("global", "a name that is no text")
        found = Global(module[:200], name[:200], self.op_at)
        value = known(module, name)
        if value is not None:
            return value
        if not inert(module, name):
            self.refused.append(found)
        return found

    def call(self, function: Any, args: Any) -> Any:
        if not isinstance(args, tuple):
            raise Refused("a call without arguments")
        if isinstance(function, Global):
            return Stub(function, args)
        if isinstance(function, Stub):  # what getattr would have given, called
            return Stub(function.kind, args)
        if not callable(function):
            raise Refused("a call of something that is no function")
        return function(*args)

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Stub):
            target.state = state
        # Other values (an OrderedDict's or a tensor's attributes) keep what they are: the state is of no use here.

    def persistent(self, pid: Any) -> StorageRef:
        # ('storage', type, key, location, numel[, view]) is the only kind torch writes.
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise Refused("a persistent id that is no storage")
        _, kind, key, location, numel, *_ = pid
        dtype = (
            kind.dtype
            if isinstance(kind, StorageType)
            else "uint8"
            if str(kind) == "torch.storage.UntypedStorage"
            else ""
        )
        if not dtype or type(numel) is not int or not 0 <= numel < 1 << 63 or not isinstance(key, (str, int)):
            raise Refused("a storage of no known type or size")
        return StorageRef(str(key)[:200], dtype, numel, str(location)[:40])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def set_items(self, target: Any, items: list[Any]) -> None:
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(target, Stub):
            target.items += pairs
            return
        if not isinstance(target, dict):
            raise Refused("items of something that is no dict")
        for key, value in pairs:
            if not _flat(key):
                raise Refused("a key that is no plain value")
            target[key] = value

    def extend(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, Stub):
            target.items += items
        elif isinstance(target, list):
            target += items
        else:
            raise Refused("elements of something that is no list")


def _flat(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(isinstance(k, (str, int, float, bytes, type(None))) for k in key)
    return isinstance(key, (str, int, float, bytes, type(None), Stub, StorageType))


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _unquoted(raw: bytes) -> str:
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise Refused("a text without quotes")
    return raw[1:-1].decode("unicode_escape") if b"\\" in raw else raw[1:-1].decode("latin1")


def _int_line(m: _Machine) -> Any:
    raw = m.line()
    if raw in (b"00", b"01"):
        return raw == b"01"
    if len(raw) > 3 * MAX_INTEGER_BYTES:
        raise m.bad("integer", f"an integer of {len(raw)} digits")
    return int(raw.rstrip(b"L"))


def _swap2(m: _Machine, function: Callable[[Any, Any], Any]) -> None:
    second, first = m.pop(), m.pop()
    m.push(function(first, second))


def _frame(m: _Machine) -> None:
    m.number("Q")  # a hint of how much to read at once


def _appends(m: _Machine) -> None:
    items = m.to_mark()
    m.extend(m.stack[-1], items)


def _set_items(m: _Machine) -> None:
    items = m.to_mark()
    m.set_items(m.stack[-1], items)


def _append(m: _Machine) -> None:
    item = m.pop()
    m.extend(m.stack[-1], [item])


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items(m.stack[-1], [key, value])


def _dict(m: _Machine) -> None:
    items = m.to_mark()
    made: dict[Any, Any] = {}
    m.set_items(made, items)
    m.push(made)


def _instance(m: _Machine) -> None:
    module, name = m.line().decode(), m.line().decode()
    args = tuple(m.to_mark())
    m.push(m.call(m.named(module, name), args))


def _object(m: _Machine) -> None:
    kind, *args = m.to_mark()
    m.push(m.call(kind, tuple(args)))


def _new_with_names(m: _Machine) -> None:
    names, args, kind = m.pop(), m.pop(), m.pop()
    stub = m.call(kind, args)
    if isinstance(stub, Stub):
        stub.state = names
    m.push(stub)


def _last(n: int) -> Callable[[_Machine], None]:
    def tuple_of(m: _Machine) -> None:
        items = [m.pop() for _ in range(n)]
        m.push(tuple(reversed(items)))

    return tuple_of


def _pushing(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.push(value(m))


_OPCODES: dict[int, Callable[[_Machine], None]] = {
    ord(code): handler
    for code, handler in {
        "\x80": lambda m: None if m.take(1)[0] <= 5 else _unknown_protocol(m),  # PROTO
        "\x95": _frame,
        "(": lambda m: m.push(_MARK),
        "0": lambda m: m.stack.pop(),  # POP
        "1": lambda m: m.to_mark(),  # POP_MARK
        "2": lambda m: m.push(m.stack[-1]),  # DUP
        "N": _pushing(lambda m: None),
        "\x88": _pushing(lambda m: True),
        "\x89": _pushing(lambda m: False),
        "I": _pushing(_int_line),
        "L": _pushing(_int_line),
        "J": _pushing(lambda m: m.number("i")),
        "K": _pushing(lambda m: m.take(1)[0]),
        "M": _pushing(lambda m: m.number("H")),
        "\x8a": _pushing(lambda m: m.integer(m.take(m.take(1)[0]))),  # LONG1
        "\x8b": _pushing(lambda m: m.integer(m.take(m.number("i")))),  # LONG4
        "F": _pushing(lambda m: float(m.line())),
        "G": _pushing(lambda m: struct.unpack(">d", m.take(8))[0]),
        "S": _pushing(lambda m: _unquoted(m.line())),
        "T": _pushing(lambda m: m.take(m.number("i")).decode("latin1")),
        "U": _pushing(lambda m: m.take(m.take(1)[0]).decode("latin1")),
        "V": _pushing(lambda m: m.line().decode("raw_unicode_escape")),
        "X": _pushing(lambda m: _utf8(m.take(m.number("I")))),
        "\x8c": _pushing(lambda m: _utf8(m.take(m.take(1)[0]))),
        "\x8d": _pushing(lambda m: _utf8(m.take(m.number("Q")))),
        "B": _pushing(lambda m: m.take(m.number("I"))),
        "C": _pushing(lambda m: m.take(m.take(1)[0])),
        "\x8e": _pushing(lambda m: m.take(m.number("Q"))),
        "\x96": _pushing(lambda m: m.take(m.number("Q"))),  # BYTEARRAY8
        ")": _pushing(lambda m: ()),
        "]": _pushing(lambda m: []),
        "}": _pushing(lambda m: {}),
        "\x8f": _pushing(lambda m: []),  # EMPTY_SET: order and equality of members are of no use here
        "\x90": _appends,  # ADDITEMS
        "\x91": _pushing(lambda m: m.to_mark()),  # FROZENSET
        "t": _pushing(lambda m: tuple(m.to_mark())),
        "l": _pushing(lambda m: m.to_mark()),
        "d": _dict,
        "\x85": _last(1),
        "\x86": _last(2),
        "\x87": _last(3),
        "a": _append,
        "e": _appends,
        "s": _set_item,
        "u": _set_items,
        "p": lambda m: m.put(int(m.line()[:20])),
        "q": lambda m: m.put(m.take(1)[0]),
        "r": lambda m: m.put(m.number("I")),
        "\x94": lambda m: m.put(len(m.memo)),  # MEMOIZE
        "g": _pushing(lambda m: _remembered(m, int(m.line()[:20]))),
        "h": _pushing(lambda m: _remembered(m, m.take(1)[0])),
        "j": _pushing(lambda m: _remembered(m, m.number("I"))),
        "c": _pushing(lambda m: m.named(m.line().decode(), m.line().decode())),
        "\x93": lambda m: _swap2(m, m.named),  # STACK_GLOBAL
        "R": lambda m: _swap2(m, m.call),
        "\x81": lambda m: _swap2(m, m.call),  # NEWOBJ
        "\x92": _new_with_names,
        "i": _instance,
        "o": _object,
        "b": lambda m: m.build(),
        "P": _pushing(lambda m: m.persistent(m.line())),
        "Q": _pushing(lambda m: m.persistent(m.pop())),
    }.items()
}  # fmt: skip


def _unknown_protocol(m: _Machine) -> None:
    raise m.bad("protocol", "an unknown protocol")


def _remembered(m: _Machine, index: int) -> Any:
    if index not in m.memo:
        raise Refused("a reference to nothing")
    return m.memo[index]
