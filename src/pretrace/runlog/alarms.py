"""Alarms over a log: rules with their thresholds, evaluated on the last record and what came before it.

    nonfinite            a loss or a logit figure is NaN or infinite; a norm is, on an update that was not skipped
    spike                the loss stands more than `spike_sigmas` robust deviations above the median of the last `spike_window`
    logit-drift          mean log-sum-exp moves by more than `drift_per_1000` nats per 1,000 steps, and by more than
                         `drift_over_loss` times what the loss moves by: least squares over `drift_window` steps. A constant
                         added to all logits moves it one to one and the loss not at all; a model that learns moves both.
    loss-scale-collapse  the loss scale is at its floor, or more than `skip_share` of the last `skip_window` updates were skipped

Where the thresholds come from: three clean runs of 1,500 steps (GPT-2, NeoX and Llama of two layers on Shakespeare, lr 2e-3)
show at most 4.1 robust deviations, and at most 2.4 nats per 1,000 steps after the first 200 (`docs/telemetry.md`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pretrace.runlog.record import Alarm, Record

_MAD_TO_SIGMA = 1.4826  # a Gaussian's standard deviation over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Rules:
    """Thresholds. They watch a run and never move its numbers."""

    spike_sigmas: float = 8.0
    spike_window: int = 50
    drift_per_1000: float = 4.0
    drift_over_loss: float = 3.0
    drift_window: int = 400
    drift_from: int = 200  # steps of the start that no drift is fitted to: logits grow from nothing there
    scale_floor: float = 1.0
    skip_share: float = 0.2
    skip_window: int = 50
    repeat_after: int = 100  # steps before the same alarm is raised again; nonfinite always is


class Watch:
    """Looks at every record as it comes and hands it back with its alarms."""

    def __init__(self, rules: Rules | None = None, history: Sequence[Record] = ()) -> None:
        self.rules = rules or Rules()
        longest = max(self.rules.spike_window, self.rules.drift_window, self.rules.skip_window) + 1
        self._seen: deque[Record] = deque(maxlen=longest)
        self._last: dict[str, int] = {}
        # What was raised before stands in the records: a resumed run raises the same alarms at the same steps.
        for record in history:
            self._seen.append(record)
            self._last |= {alarm.code: record.step for alarm in record.alarms}

    def __call__(self, record: Record) -> Record:
        """`record` with the alarms that it raises."""
        self._seen.append(record)
        raised = [alarm for alarm in check(self.rules, list(self._seen)) if self._is_news(alarm, record.step)]
        self._last |= {alarm.code: record.step for alarm in raised}
        return replace(record, alarms=tuple(raised)) if raised else record

    def _is_news(self, alarm: Alarm, step: int) -> bool:
        last = self._last.get(alarm.code)
        return alarm.code == "nonfinite" or last is None or step - last >= self.rules.repeat_after


def check(rules: Rules, records: Sequence[Record]) -> list[Alarm]:
    """The alarms that the last of `records` raises."""
    found = [_nonfinite(records[-1]), _spike(rules, records), _drift(rules, records), _collapse(rules, records)]
    return [alarm for alarm in found if alarm is not None]


def _nonfinite(record: Record) -> Alarm | None:
    always = ("loss", "z_loss", "logit_mean", "logit_rms", "logit_max", "logit_lse", "param_norm", "update_norm")
    # An overflow that a loss scale skips is ordinary; it shows in the gradient's norm only.
    names = always if record.skipped else (*always, "grad_norm")
    for name in names:
        value = getattr(record, name)
        if value is not None and not math.isfinite(value):
            return Alarm("nonfinite", f"{name} is finite", math.inf, value, f"{name} is {value} at step {record.step}")
    return None


def _spike(rules: Rules, records: Sequence[Record]) -> Alarm | None:
    before = [r.loss for r in records[-rules.spike_window - 1 : -1] if math.isfinite(r.loss)]
    now = records[-1]
    if len(before) < rules.spike_window or not math.isfinite(now.loss):
        return None
    middle = float(np.median(before))
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(np.array(before) - middle)))
    limit = middle + rules.spike_sigmas * sigma
    # A run that repeats one batch has no spread: then a twentieth of the loss is a spike.
    limit = max(limit, middle * 1.05)
    if now.loss <= limit:
        return None
    rule = f"loss <= median + {rules.spike_sigmas:g} * {_MAD_TO_SIGMA} * MAD of the last {rules.spike_window} losses"
    return Alarm(
        "spike", rule, limit, now.loss, f"loss jumps from about {middle:.4g} to {now.loss:.4g} at step {now.step}"
    )


def slope_per_1000(steps: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope in units per 1,000 steps.

    >>> slope_per_1000([10, 20, 30], [1.0, 1.1, 1.2])
    10.0
    """
    x = np.asarray(steps, dtype=np.float64)
    x -= x.mean()
    return round(1000.0 * float(x @ np.asarray(values, dtype=np.float64)) / float(x @ x), 9)


def _drift(rules: Rules, records: Sequence[Record]) -> Alarm | None:
    points = [
        (r.step, r.logit_lse, r.loss)
        for r in records[-rules.drift_window :]
        if r.logit_lse is not None and math.isfinite(r.logit_lse + r.loss) and r.step > rules.drift_from
    ]
    if len(points) < rules.drift_window // 2:
        return None
    steps, lses, losses = zip(*points, strict=True)
    slope, seen = slope_per_1000(steps, lses), slope_per_1000(steps, losses)
    limit = max(rules.drift_per_1000, rules.drift_over_loss * abs(seen))
    if abs(slope) <= limit:
        return None
    rule = (f"|slope of logit_lse| <= {rules.drift_per_1000:g} nats per 1,000 steps or {rules.drift_over_loss:g} x "
            f"|slope of loss| ({abs(seen):.3g}) over {len(points)} steps")  # fmt: skip
    what = f"log-sum-exp of the logits moves by {slope:+.3g} nats per 1,000 steps, the loss by {seen:+.3g}"
    return Alarm("logit-drift", rule, limit, slope, what)


def _collapse(rules: Rules, records: Sequence[Record]) -> Alarm | None:
    now = records[-1]
    if now.loss_scale is None:
        return None
    if now.skipped and now.loss_scale <= rules.scale_floor:
        what = f"the loss scale is down to {now.loss_scale:g} at step {now.step} and the update is still skipped"
        rule = f"loss scale > {rules.scale_floor:g} where an update is skipped"
        return Alarm("loss-scale-collapse", rule, rules.scale_floor, now.loss_scale, what)
    recent = records[-rules.skip_window :]
    share = sum(r.skipped for r in recent) / len(recent)
    # The first overflows of a run find the scale; only a full window tells.
    if len(recent) < rules.skip_window or now.step <= rules.skip_window or share <= rules.skip_share:
        return None
    rule = f"at most {rules.skip_share:.0%} of the last {rules.skip_window} updates skipped"
    return Alarm("loss-scale-collapse", rule, rules.skip_share, share,
                 f"{share:.0%} of the last {rules.skip_window} updates were skipped; loss scale {now.loss_scale:g}")  # fmt: skip
