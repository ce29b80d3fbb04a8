"""Pickles of protocols 0 to 5 as plain data: the opcodes of a machine that runs nothing.

Names become functions of `pickle_globals` or inert stubs; no module is imported, no object is called, no attribute is set on
anything but a stub.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pretrace.checkpoint.pickle_globals import Global, Refused, Stub
from pretrace.checkpoint.pickle_machine import MARK, MAX_BYTES, MAX_INTEGER_BYTES, Machine, Truncated

__all__ = ["MAX_BYTES", "Truncated", "Unpickled", "unpickle"]


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
    machine = Machine(data, start, where)
    try:
        value = machine.run(_OPCODES)
    except (IndexError, struct.error):
        if machine.at >= len(data):
            raise Truncated from None
        raise machine.bad("stack", "an opcode finds nothing to work on") from None
    except Refused as error:
        raise machine.bad("call", str(error)) from None
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise machine.bad("value", f"a malformed value ({type(error).__name__})") from None
    return Unpickled(value, machine.at, machine.refused)


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _unquoted(raw: bytes) -> str:
    if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
        raise Refused("a text without quotes")
    return raw[1:-1].decode("unicode_escape") if b"\\" in raw else raw[1:-1].decode("latin1")


def _int_line(m: Machine) -> Any:
    raw = m.line()
    if raw in (b"00", b"01"):
        return raw == b"01"
    if len(raw) > 3 * MAX_INTEGER_BYTES:
        raise m.bad("integer", f"an integer of {len(raw)} digits")
    return int(raw.rstrip(b"L"))


def _swap2(m: Machine, function: Callable[[Any, Any], Any]) -> None:
    second, first = m.pop(), m.pop()
    m.push(function(first, second))


def _frame(m: Machine) -> None:
    m.number("Q")  # a hint of how much to read at once


def _appends(m: Machine) -> None:
    items = m.to_mark()
    m.extend(m.stack[-1], items)


def _set_items(m: Machine) -> None:
    items = m.to_mark()
    m.set_items(m.stack[-1], items)


def _append(m: Machine) -> None:
    item = m.pop()
    m.extend(m.stack[-1], [item])


def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items(m.stack[-1], [key, value])


def _dict(m: Machine) -> None:
    items = m.to_mark()
    made: dict[Any, Any] = {}
    m.set_items(made, items)
    m.push(made)


def _instance(m: Machine) -> None:
    module, name = m.line().decode(), m.line().decode()
    args = tuple(m.to_mark())
    m.push(m.call(m.named(module, name), args))


def _object(m: Machine) -> None:
    kind, *args = m.to_mark()
    m.push(m.call(kind, tuple(args)))


def _new_with_names(m: Machine) -> None:
    names, args, kind = m.pop(), m.pop(), m.pop()
    stub = m.call(kind, args)
    if isinstance(stub, Stub):
        stub.state = names
    m.push(stub)


def _last(n: int) -> Callable[[Machine], None]:
    def tuple_of(m: Machine) -> None:
        items = [m.pop() for _ in range(n)]
        m.push(tuple(reversed(items)))

    return tuple_of


def _pushing(value: Callable[[Machine], Any]) -> Callable[[Machine], None]:
    return lambda m: m.push(value(m))


_OPCODES: dict[int, Callable[[Machine], None]] = {
    ord(code): handler
    for code, handler in {
        "\x80": lambda m: None if m.take(1)[0] <= 5 else _unknown_protocol(m),  # PROTO
        "\x95": _frame,
        "(": lambda m: m.push(MARK),
        "0": lambda m: m.stack.pop(),  # POP
        "1": lambda m: m.to_mark(),  # POPMARK
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


def _unknown_protocol(m: Machine) -> None:
    raise m.bad("protocol", "an unknown protocol")


def _remembered(m: Machine, index: int) -> Any:
    if index not in m.memo:
        raise Refused("a reference to nothing")
    return m.memo[index]
