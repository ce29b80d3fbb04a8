"""Every alarm fires on its planted fault and is silent on clean runs."""

import math

import numpy as np
import pytest

from pretrace.runlog import Record, Rules, Watch


def clean_run(seed, steps=1000, fp16=False):
    """A loss that falls with noise, logits that grow from nothing and settle, a few overflows of a loss scale."""
    draw = np.random.default_rng(seed)
    scale, out = 4096.0, []
    for step in range(1, steps + 1):
        age = 1 - math.exp(-step / 150)
        loss = 2 + 3 * math.exp(-step / 200) + 0.08 * draw.standard_normal()
        skipped = fp16 and scale > 4096 and draw.random() < 0.3  # only what grew too far overflows
        scale = scale / 2 if skipped else scale * 2 if step % 100 == 0 else scale
        out.append(Record(
            step=step, loss=loss, lr=1e-3, n_tokens=1, n_counted=1, grad_norm=math.inf if skipped else 1.0,
            logit_mean=-8 * age, logit_rms=10 * age, logit_max=25 * age,
            logit_lse=5 + 2 * age + 0.2 * draw.standard_normal(), loss_scale=scale if fp16 else None, skipped=skipped,
        ))  # fmt: skip
    return out


def codes(records, rules=None):
    watch = Watch(rules)
    return [(record.step, alarm.code) for record in map(watch, records) for alarm in record.alarms]


def changed(records, step, **values):
    from dataclasses import replace

    return [replace(r, **values) if r.step == step else r for r in records]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fp16", [False, True])
def test_three_clean_runs_raise_nothing(seed, fp16):
    assert codes(clean_run(seed, fp16=fp16)) == []


@pytest.mark.parametrize("name", ["loss", "z_loss", "grad_norm", "logit_max", "param_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_named(name, value):
    (alarm,) = Watch()(Record(step=7, lr=1.0, n_tokens=1, n_counted=1, **({"loss": 1.0} | {name: value}))).alarms
    assert (alarm.code, alarm.rule) == ("nonfinite", f"{name} is finite")
    assert name in alarm.what


def test_a_spike_is_seen_at_its_step():
    assert codes(changed(clean_run(0), 700, loss=3.5)) == [(700, "spike")]


def test_olmo_560_three_spikes_that_heal_are_three_alarms():
    run = clean_run(1)
    for step in (300, 500, 700):
        for k, height in enumerate((2.0, 1.2, 0.7, 0.4, 0.2)):
            run = changed(run, step + k, loss=run[step + k - 1].loss + height)
    assert codes(run, Rules(repeat_after=10)) == [(300, "spike"), (500, "spike"), (700, "spike")]


def test_logits_that_drift_where_the_loss_does_not_look_are_seen_with_their_slope():
    from dataclasses import replace

    run = [replace(r, logit_lse=r.logit_lse + 0.01 * max(0, r.step - 400)) for r in clean_run(2)]
    watch = Watch()
    alarms = [alarm for record in map(watch, run) for alarm in record.alarms]
    assert {alarm.code for alarm in alarms} == {"logit-drift"}
    assert alarms[-1].value == pytest.approx(10, abs=1.0)
    assert "4 nats per 1,000 steps" in alarms[-1].rule


def test_a_collapsed_loss_scale_is_seen():
    run = clean_run(0, 200)
    for step in range(120, 150):
        run = changed(run, step, loss_scale=max(1.0, 4096.0 / 2 ** (step - 119)), skipped=True, grad_norm=math.inf)
    found = codes(run, Rules(repeat_after=1000))
    assert found[0][1] == "loss-scale-collapse"
    assert 125 <= found[0][0] <= 135


def test_the_first_overflows_of_a_run_only_find_the_scale():
    run = clean_run(0, 60)
    for step in range(1, 13):
        run = changed(run, step, loss_scale=65536.0 / 2**step, skipped=True, grad_norm=math.inf)
    assert codes(run) == []


def test_the_same_alarm_waits_before_it_is_raised_again():
    run = clean_run(0)
    for step in range(700, 720):
        run = changed(run, step, loss=9.0)
    assert codes(run) == [(700, "spike")]
    assert len(codes(run, Rules(repeat_after=1))) == 20


def test_a_resumed_run_watches_on_from_its_history():
    run = changed(clean_run(0), 700, loss=3.5)
    watch = Watch(history=run[:699])
    assert [alarm.code for alarm in watch(run[699]).alarms] == ["spike"]
