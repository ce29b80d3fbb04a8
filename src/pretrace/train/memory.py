"""Keeps the memory that one update frees for the next one.

glibc gives large blocks back to the system at once and the top of its heap soon after. Every update takes them again, and the
system clears each page before it hands it out: 4% of an update's time where activations are hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's numbers (malloc.h)


def keep_freed_memory() -> bool:
    """Tells glibc's allocator to keep what is freed, up to 2 GiB; False where there is no glibc.

    The process then holds the most that it ever needed, which it would need again an update later.
    """
    if not sys.platform.startswith("linux"):
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is None:  # musl
        return False
    return bool(tune(_TRIM_THRESHOLD, (1 << 31) - 1)) & bool(tune(_MMAP_THRESHOLD, 1 << 30))
