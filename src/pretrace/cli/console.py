"""Printing: tables and words for people, one JSON object for programs, progress for long work."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

LINE_EVERY_S = 5.0


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dataclasses and specs become objects, arrays lists, NaN and infinities strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # a specification; importing pydantic to ask costs every verb 50 ms
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return value


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(plain(value), indent=2))


def say(text: str = "") -> None:
    """A line on standard output."""
    print(text)


class Progress:
    """A bar on a terminal, a line every few seconds in a log: what, how far, how fast, how long still."""

    def __init__(self, what: str, total: float, unit: str, stream: TextIO, where: str) -> None:
        self._what, self._total, self._unit, self._stream, self._where = what, total, unit, stream, where
        self._terminal = stream.isatty()
        self._done, self._before, self._start = 0.0, 0.0, time.monotonic()  # before: done by an earlier process
        self._last = 0.0 if self._terminal else self._start  # in a log, work that is over at once says nothing

    def advance(self, by: float = 1, note: str = "") -> None:
        """Counts `by` units as done."""
        self._done += by
        now = time.monotonic()
        if now - self._last >= (0.1 if self._terminal else LINE_EVERY_S):
            self._last = now
            self._show(note)

    def to(self, done: float, note: str = "") -> None:
        """Says that `done` units are done in all; what lies before the first call is not this process's work."""
        if not self._done:
            self._done = self._before = done - 1
        self.advance(done - self._done, note)

    def close(self) -> None:
        """Ends the line on a terminal."""
        if self._terminal:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def _show(self, note: str) -> None:
        elapsed = time.monotonic() - self._start
        rate = (self._done - self._before) / elapsed if elapsed > 0 else 0.0
        left = max(self._total - self._done, 0.0) / rate if rate else math.inf  # a total may be an estimate
        part = f"{100 * self._done / self._total:3.0f}%" if self._total else ""
        text = f"{self._what} {part} {rate:.3g} {self._unit}/s {_duration(left)} left"
        text += f" {note}" if note else ""
        text += f" -> {self._where}" if self._where else ""
        # A line longer than the terminal would wrap, and the next one could not take its place.
        fits = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r\x1b[2K{fits}" if self._terminal else f"{text}\n")
        self._stream.flush()


@contextmanager
def progress(
    what: str, total: float, unit: str = "items", where: str = "", stream: TextIO | None = None
) -> Iterator[Progress]:
    """A progress display on standard error (standard output stays clean for `--json`)."""
    shown = Progress(what, total, unit, stream or sys.stderr, where)
    try:
        yield shown
    finally:
        shown.close()


class Counter:
    """A progress display whose total is known only once the work is planned."""

    def __init__(self, what: str, unit: str = "items", where: str = "") -> None:
        self._what, self._unit, self._where = what, unit, where
        self._shown: Progress | None = None
        self._done = 0

    def show(self, done: int, total: int, note: str = "") -> None:
        """Says how many of `total` are done."""
        if self._shown is None:
            self._shown = Progress(self._what, total, self._unit, sys.stderr, self._where)
        self._shown.advance(done - self._done, note)
        self._done = done

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.close()


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
