"""Memory that the process holds and does not need, given back to the kernel. Where the system cannot do that, nothing happens."""

from __future__ import annotations

import ctypes
import re
from typing import Any

_ARENA_MAX = -8  # mallopt's number (malloc.h)
_DONTNEED = 4  # madvise's (mman.h, Linux)
_CODE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+\s+(\S.*)")


def one_arena() -> None:
    """Lets all threads from now on share one heap (glibc).

    tensorstore's threads each would keep what they freed in a heap of their own, together more than the tensors.
    """
    tune = _function("mallopt")
    if tune is not None:
        tune(_ARENA_MAX, 1)


def trim() -> None:
    """Gives back what the allocator keeps in holes (glibc)."""
    give_back = _function("malloc_trim")
    if give_back is not None:
        give_back(0)


def leave_code(library: str) -> None:
    """Lets go of the code of a library that has done its work; it is mapped again when it is called.

    A compiler touches 46 MiB of itself to make a kernel of 1 KiB. Only code is let go of: it is never written to.
    """
    advise = _function("madvise")
    if advise is None:
        return
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            found = [m for line in maps if (m := _CODE.match(line)) and library in m[3].rsplit("/", 1)[-1]]
    except OSError:
        return
    for first, last in ((int(m[1], 16), int(m[2], 16)) for m in found):
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _DONTNEED)


def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # no C library of that kind
        return None
