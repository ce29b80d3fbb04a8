"""Alarms on runs of the real executor: silent on three clean ones, raised by each planted fault.

The rules are those of `pretrace.runlog.Rules`; windows are shortened where a test plants its fault early.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from assets import unpacked
from pretrace.batch import from_windows
from pretrace.runlog import Rules, Watch
from pretrace.step.execute import execute
from pretrace.step.state import begin
from pretrace.train.update import record_of
from tiny import gpt, plan

VOCAB = 128
QUICK = Rules(spike_window=20, drift_window=60, drift_from=40, skip_window=20)


class Shifted(nn.Module):
    """A model whose logits wander: a constant grows on all of them, which the loss does not see."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.shift = inner, 0.0

    def forward(self, tokens):
        return self.inner(tokens) + self.shift


@cache
def shakespeare():
    text = (unpacked("corpus") / "corpus" / "tinyshakespeare.txt").read_bytes()
    return np.minimum(np.frombuffer(text, dtype=np.uint8), VOCAB - 1).astype(np.int64)


def play(positions):
    """Sixteen bytes of Shakespeare from a place that depends on the position."""
    starts = [np.random.default_rng(i).integers(0, len(shakespeare()) - 17) for i in positions]
    return from_windows(np.stack([shakespeare()[s : s + 17] for s in starts]))


def small(seed=0):
    return gpt(seed, d=16, layers=1, vocab=VOCAB)


def records(plan_, model, steps, plant=lambda step, model: None, data=play):
    state = begin(plan_, model)
    for step in range(steps):
        plant(step, model)
        outcome = execute(plan_, state, data, step=step)
        yield record_of(outcome, (0, 0), 0.1)


def alarms(found, rules=None):
    watch = Watch(rules)
    return [(record.step, alarm) for record in map(watch, found) for alarm in record.alarms]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_three_clean_runs_are_silent(seed):
    of = plan(micro_batch=4, schedule__peak=(1e-3, 3e-3, 5e-3)[seed])
    assert alarms(records(of, small(seed), 700)) == []


def test_a_clean_start_is_silent_under_short_windows_too():
    assert alarms(records(plan(micro_batch=4), small(), 120), QUICK) == []


def test_wandering_logits_raise_the_drift_with_its_slope():
    def wander(step, model):
        model.shift = 0.02 * step

    found = alarms(records(plan(micro_batch=4), Shifted(small()), 120, wander), QUICK)
    assert {alarm.code for _, alarm in found} == {"logit-drift"}
    # 20 nats per 1,000 steps were planted; the model's own first hundred adds up to ten.
    assert 20 < found[-1][1].value < 32
    assert "nats per 1,000 steps" in found[-1][1].rule


def test_a_bad_batch_raises_a_spike_at_its_step():
    def with_one_bad(positions):
        batch = play(positions)
        bad = positions.start // 8 == 100  # the update after 100 updates
        return type(batch)(batch.tokens, (batch.labels + 31) % VOCAB) if bad else batch

    found = alarms(records(plan(micro_batch=4), small(), 110, data=with_one_bad), QUICK)
    assert [(step, alarm.code) for step, alarm in found] == [(101, "spike")]


def test_a_broken_weight_raises_nonfinite():
    def strike(step, model):
        if step == 5:
            with torch.no_grad():
                model.head.weight[3, 3] = float("inf")

    static = plan(loss_scale={"kind": "static", "scale": 1.0})
    found = alarms(records(static, small(), 6, strike))
    assert (found[0][0], found[0][1].code) == (6, "nonfinite")
    assert "loss is" in found[0][1].what


def test_a_scale_that_only_falls_raises_the_collapse():
    scale = {"kind": "dynamic", "rule": "megatron", "initial": 2.0**40, "growth": 2.0, "backoff": 0.5, "window": 1000,
             "hysteresis": 1, "consecutive_hysteresis": False, "minimum": 2.0**36}  # fmt: skip
    of = plan(reduce_dtype="float16", loss_scale=scale)
    found = alarms(records(of, small(), 8), Rules(scale_floor=2.0**36))
    assert [(step, alarm.code) for step, alarm in found] == [(5, "loss-scale-collapse")]


def test_skipped_updates_do_not_advance_the_schedule():
    scale = {"kind": "dynamic", "rule": "torch", "initial": 2.0**24, "growth": 2.0, "backoff": 2.0**-8, "window": 1000,
             "hysteresis": 1, "consecutive_hysteresis": False, "minimum": 1.0}  # fmt: skip
    warm = {"kind": "constant", "peak": 1e-3, "warmup_steps": 10}
    first, *rest = records(plan(reduce_dtype="float16", loss_scale=scale, schedule=warm), small(), 4)
    assert (first.skipped, first.loss_scale, first.update_norm) == (True, 2.0**24, 0.0)
    applied = [record for record in (first, *rest) if not record.skipped]
    # Rates 0, 1e-4, 2e-4, ... follow the updates that took place, not the iterations.
    assert [record.lr for record in applied] == [1e-4 * n for n in range(len(applied))]
    assert 1 <= len(applied) < 4
