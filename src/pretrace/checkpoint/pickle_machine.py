"""The state of the pickle machine: a stack, a memo, and what may be done with them. `pickles` holds the opcodes.

Memory is bounded by the size of the pickle: lengths are checked against the bytes that are there, the memo holds what was
stored, dictionaries take flat keys only (the hash of a tuple of tuples can take exponential time).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.pickle_globals import Global, Refused, StorageRef, StorageType, Stub, inert, known

MAX_BYTES = 64 << 20
MAX_OPCODES = 8_000_000
MAX_INTEGER_BYTES = 64


MARK = object()
STOP = 0x2E


class Truncated(Exception):
    """The pickle goes on after the bytes that are there."""


class Machine:
    """Executes opcodes on plain values; nothing is imported, called or set but stubs."""

    def __init__(self, data: bytes, start: int, where: str) -> None:
        self.data, self.at, self.where = data, start, where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.refused: list[Global] = []
        self.op_at = start

    def run(self, opcodes: Mapping[int, Callable[[Machine], Any]]) -> Any:
        """The value that the pickle leaves, by the handlers of `opcodes`."""
        data = self.data
        for _ in range(MAX_OPCODES):
            if self.at >= len(data):
                raise Truncated
            self.op_at = self.at
            opcode = data[self.at]
            self.at += 1
            if opcode == STOP:
                return self.stack.pop()
            handler = opcodes.get(opcode)
            if handler is None:
                raise self.bad("opcode", f"the opcode {opcode:#04x} is not executed")
            handler(self)
        raise self.bad("size", f"more than {MAX_OPCODES:,} opcodes")

    def bad(self, rule: str, what: str) -> DamagedFile:
        """The refusal of the opcode that is being executed."""
        return DamagedFile(f"pickle-{rule}", f"the pickle holds {what} at byte {self.op_at}", self.where,
                           "do not load this file with torch.load; fetch it again from its author", byte=self.op_at)  # fmt: skip

    # -- bytes of the stream

    def take(self, n: int) -> bytes:
        """The next n bytes of the stream."""
        if n < 0 or n > MAX_BYTES:
            raise self.bad("length", f"a length of {n}")
        if self.at + n > len(self.data):
            self.at = len(self.data)
            raise Truncated
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form: str) -> int:
        """The next number of a struct format, little-endian."""
        return int(struct.unpack("<" + form, self.take(struct.calcsize(form)))[0])

    def line(self) -> bytes:
        """The bytes up to the end of the line."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            self.at = len(self.data)
            raise Truncated
        made = self.data[self.at : end]
        self.at = end + 1
        return made

    def integer(self, raw: bytes) -> int:
        """A signed integer of any reasonable length."""
        if len(raw) > MAX_INTEGER_BYTES:
            raise self.bad("integer", f"an integer of {len(raw)} bytes")
        return int.from_bytes(raw, "little", signed=True)

    # -- the stack

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Takes the uppermost value; a mark is none."""
        value = self.stack.pop()
        if value is MARK:
            raise IndexError
        return value

    def to_mark(self) -> list[Any]:
        """Takes everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    # -- names and calls

    def named(self, module: Any, name: Any) -> Any:
        """What a name stands for: a plain value, a known function, or the name itself."""
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
        """The value of a known function, or a stub of what the call would have been."""
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
        """Gives a stub its state."""
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Stub):
            target.state = state
        # Other values (an OrderedDict's or a tensor's attributes) keep what they are: the state is of no use here.

    def persistent(self, pid: Any) -> StorageRef:
        """The storage that a persistent id names."""
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
        """Remembers the uppermost value."""
        self.memo[index] = self.stack[-1]

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Puts pairs into a dictionary or a stub."""
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
        """Puts elements into a list or a stub."""
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
