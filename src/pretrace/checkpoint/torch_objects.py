"""Walks through what a torch file holds: its tensors by name, and its plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.pickle_globals import Stub, TensorRef

_MAX_DEPTH = 64
_MAX_NODES = 2_000_000


def tensors_in(value: Any) -> Iterator[tuple[str, TensorRef]]:
    """Every tensor of a plain object, under its keys joined by dots."""
    return _walk(value, "", 0, [_MAX_NODES])


def _walk(value: Any, prefix: str, depth: int, room: list[int]) -> Iterator[tuple[str, TensorRef]]:
    # A small pickle can refer to one list so often that the tree of references has no end: the walk is bounded.
    room[0] -= 1
    if room[0] < 0:
        raise DamagedFile(
            "pickle-size", f"the object has more than {_MAX_NODES:,} parts", prefix[:80], "it is no checkpoint"
        )
    if isinstance(value, TensorRef):
        yield prefix, value
    elif depth < _MAX_DEPTH:
        for key, item in _children(value):
            yield from _walk(item, f"{prefix}.{key}" if prefix else str(key), depth + 1, room)


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from ((k, v) for k, v in value.items() if not isinstance(k, Stub))
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif isinstance(value, Stub) and isinstance(value.state, dict):
        yield from value.state.items()


def plain_of(value: Any) -> Any:
    """The scalars, texts and small containers of an object, as plain data for metadata; tensors and stubs are left out."""
    return _plain(value, 0, [2000])


def _plain(value: Any, depth: int, room: list[int]) -> Any:
    room[0] -= 1
    if isinstance(value, Stub):
        value = value.state
    if room[0] < 0 or depth > 6:
        return None
    if isinstance(value, (str, int, float, bool)):
        return value[:2000] if isinstance(value, str) else value
    if isinstance(value, dict):
        made = {str(k): _plain(v, depth + 1, room) for k, v in value.items() if isinstance(k, (str, int))}
        return {k: v for k, v in made.items() if v is not None}
    if isinstance(value, (list, tuple)) and len(value) <= 200:
        return [_plain(v, depth + 1, room) for v in value]
    return None
