"""JSON from files nobody vouches for: bounded in size and depth, and one key means one value."""

from __future__ import annotations

import json
from typing import Any

from pretrace.checkpoint.faults import DamagedFile

MAX_BYTES = 100_000_000  # the limit of the safetensors reference implementation for its header
MAX_DEPTH = 64
MAX_DIGITS = 20  # no size, offset or count of a file has more


class _Twice(Exception):
    pass


def parse(data: bytes, where: str, code: str = "header") -> Any:
    """The value of a JSON text.

    Raises
    ------
    DamagedFile
        If it is too large, too deep, not JSON, or has a key twice (two readers would disagree about its meaning).
    """
    if len(data) > MAX_BYTES:
        raise DamagedFile(
            f"{code}-size",
            f"{len(data):,} bytes of JSON, at most {MAX_BYTES:,} are read",
            where,
            "it is no checkpoint header",
        )
    _refuse_deep(data, where, code)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_int=_integer)
    except _Twice as error:
        raise DamagedFile(f"{code}-duplicate-key", f"the key {error.args[0]!r} stands there twice: readers disagree about it",
                          where, "write the file again", key=error.args[0]) from None  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{code}-json", f"not JSON: {str(error)[:200]}", where, "restore the file") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        raise _Twice(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return made


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _refuse_deep(data: bytes, where: str, code: str) -> None:
    # Only brackets outside of strings nest; counting all of them can only overstate the depth, so look closer then.
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    depth, in_string, escaped = 0, False, False
    for byte in data:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in (0x5B, 0x7B):
            depth += 1
            if depth > MAX_DEPTH:
                raise DamagedFile(
                    f"{code}-depth", f"JSON nested deeper than {MAX_DEPTH}", where, "it is no checkpoint header"
                )
        elif byte in (0x5D, 0x7D):
            depth -= 1
