"""A published figure as a person types it: `wikitext.word_perplexity=37.5`, `hellaswag=28.9%`, `PUBLISHED=37.5`, `37.5`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pretrace.errors import PretraceError
from pretrace.evaluate.harness_results import metric_name, task_name

_TEXT = re.compile(
    r"^(?:(?P<task>[^=.]+?)(?:\.(?P<metric>[^=]+))?\s*=)?\s*(?P<value>[+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<percent>%?)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Published:
    """A figure with its printed precision: any value in [value - half, value + half] prints as it. Shares are in 0..1."""

    text: str
    task: str  # "" for any
    metric: str  # "" for the task's first
    value: float
    half: float
    percent: bool
    printed: str  # the figure alone, as it was typed

    def prints(self, value: float) -> bool:
        """Whether `value` prints as the published figure (with room for the rounding of floats)."""
        return abs(value - self.value) <= self.half * (1 + 1e-9) + 1e-12

    def as_share(self) -> Published:
        """The figure as a share of 1, where it was printed in percent."""
        if not (self.percent or self.value > 1):
            return self
        return Published(self.text, self.task, self.metric, self.value / 100, self.half / 100, True, self.printed)


def parse(text: str) -> Published:
    """The figure in `text`.

    Raises
    ------
    PretraceError
        If it is not `[TASK[.METRIC]=]VALUE`.

    >>> parse("wikitext.word_perplexity=37.5").half
    0.05
    >>> parse("PUBLISHED=29.41").task
    ''
    """
    found = _TEXT.match(text.strip())
    if found is None:
        raise PretraceError(
            f"{text!r} is not a figure", "--explain", "write TASK.METRIC=37.5, TASK=37.5 or PUBLISHED=37.5"
        )
    digits = found["value"].replace("_", "").replace(",", "")
    value = float(digits)
    if not math.isfinite(value):
        raise PretraceError(f"{text!r} is not a finite figure", "--explain", "write it as it was printed")
    task = (found["task"] or "").strip()
    return Published(
        text=text,
        task="" if task.upper() == "PUBLISHED" else task_name(task),
        metric=metric_name((found["metric"] or "").strip()),
        value=value,
        half=0.5 * 10.0 ** _last_place(digits.lower()),
        percent=bool(found["percent"]),
        printed=found["value"] + found["percent"],
    )


def _last_place(digits: str) -> int:
    """The power of ten of the last printed digit; trailing zeros of a whole number count as printed.

    >>> _last_place("37.5"), _last_place("1.20e3"), _last_place("40")
    (-1, 1, 0)
    """
    mantissa, _, exponent = digits.partition("e")
    return int(exponent or 0) - len(mantissa.partition(".")[2])
