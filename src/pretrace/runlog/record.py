"""A Record: what one update was, as one JSON line.

Losses are in nats a token, whatever denominator the plan differentiates: `loss` is the plan's own, `losses` gives what every
denominator would have given on the same step. Times are seconds, memory is bytes. A value that was not measured is null,
never zero. JSON has no NaN: a number that is not finite is written as the string "nan", "inf" or "-inf".
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pretrace.errors import PretraceError


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that fired: which rule, at which threshold, on which value, in words."""

    code: str  # nonfinite | spike | logit-drift | loss-scale-collapse
    rule: str  # the rule with its numbers, enough to recompute it
    threshold: float
    value: float
    what: str


@dataclass(frozen=True, slots=True)
class Record:
    """One update. `step` is the number of updates after it: the first line of a run has step 1."""

    step: int
    loss: float  # cross entropy under the plan's denominator, without the z-loss
    lr: float
    n_tokens: int  # positions read in this step, padding included
    n_counted: int  # labels that the loss looked at
    z_loss: float | None = None
    losses: dict[str, float] = field(default_factory=dict)  # by denominator
    z_losses: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None  # before clipping, as the plan's clip saw it
    clip_coefficient: float | None = None  # 1 where nothing was clipped
    param_norm: float | None = None  # after the update
    update_norm: float | None = None  # of the parameter difference that this update made
    logit_mean: float | None = None
    logit_rms: float | None = None
    logit_max: float | None = None  # largest absolute value; all four over counted positions
    logit_lse: float | None = None  # mean log-sum-exp over counted positions
    loss_scale: float | None = None
    skipped: bool = False
    tokens_per_s: float | None = None
    mfu: float | None = None  # share of the machine's peak matmul rate
    memory_bytes: int | None = None  # peak so far
    elapsed_s: float | None = None  # of this step
    positions: tuple[int, int] | None = None  # first and last + 1 position of the sample order
    alarms: tuple[Alarm, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)  # what other rooms add; plain values

    def line(self) -> str:
        """The record as one line of JSON, without the newline."""
        return json.dumps(_finite(asdict(self)), separators=(",", ":"), allow_nan=False)


_NUMBERS = {
    f.name for f in fields(Record) if f.type in ("float", "float | None", "int", "int | None") and f.name != "notes"
}
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def parse(line: str | bytes, where: str = "") -> Record:
    """The record of one line.

    Raises
    ------
    PretraceError
        If the line is not a record of ours.
    """
    try:
        data = json.loads(line)
        known = {name: _number(data[name]) if name in _NUMBERS else data[name] for name in _FIELDS if name in data}
        for name in ("losses", "z_losses"):
            known[name] = {key: _number(value) for key, value in known.get(name, {}).items()}
        known["alarms"] = tuple(_alarm(alarm) for alarm in known.get("alarms", ()))
        span = known.get("positions")
        known["positions"] = None if span is None else (int(span[0]), int(span[1]))
        return Record(**known)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise PretraceError(
            f"not a record of a run: {error}"[:200], where, "restore the log, or cut that line"
        ) from None


_FIELDS = tuple(f.name for f in fields(Record))


def _alarm(data: dict[str, Any]) -> Alarm:
    return Alarm(data["code"], data["rule"], _number(data["threshold"]), _number(data["value"]), data["what"])


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return _NONFINITE[value]
    if value is not None and not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
