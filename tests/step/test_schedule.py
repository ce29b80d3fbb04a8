"""lr_at is each program's curve, float for float."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pretrace.step import schedule as s

PYTHIA = {"decay": "cosine", "peak": 1.6e-4, "floor": 1.6e-5, "warmup_steps": 1430, "total_steps": 143_000}
V1 = s.NeoxV1(kind="neox_v1", **PYTHIA)
LATER = s.Neox(kind="neox", first_step=1, **PYTHIA)


def curve(spec, steps):
    return [s.lr_at(spec, step) for step in range(steps)]


def hf_curve(name, steps, peak, **arguments):
    from transformers.optimization import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    scheduler = get_scheduler(name, optimizer, **arguments)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


def test_pythia_first_update_has_rate_zero():
    # EleutherAI/pythia#83: step 0 and step 1 are the same weights.
    assert s.lr_at(V1, 0) == 0.0
    assert s.lr_at(V1, 1) == 1.6e-4 / 1430
    assert s.lr_at(LATER, 0) == s.lr_at(LATER, 1) > 0
    assert s.lr_at(LATER.model_copy(update={"first_step": 0}), 0) == 0.0


def test_pythia_floor_is_a_clamp_reached_at_step_115139():
    assert s.lr_at(V1, 115_138) > 1.6e-5 == s.lr_at(V1, 115_139) == s.lr_at(V1, 143_000)


def test_the_same_settings_mean_two_curves():
    # 24% apart at step 100,000, 45% at 115,000, 5.8% of the area (spec: numerics 2.6).
    short = lambda step: 1 - s.lr_at(V1, step) / s.lr_at(LATER, step)  # noqa: E731
    assert short(100_000) == pytest.approx(0.24, abs=0.005)
    assert short(115_000) == pytest.approx(0.45, abs=0.005)
    areas = [math.fsum(s.lr_at(spec, step) for step in range(0, 143_000, 10)) for spec in (V1, LATER)]
    assert 1 - areas[0] / areas[1] == pytest.approx(0.058, abs=0.001)


def test_constant_equals_transformers():
    spec = s.Constant(kind="constant", peak=3e-4, warmup_steps=7)
    assert curve(spec, 20) == hf_curve("constant_with_warmup", 20, 3e-4, num_warmup_steps=7)


@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_linear_equals_transformers(warmup):
    spec = s.HfLinear(kind="hf_linear", peak=3e-4, warmup_steps=warmup, total_steps=100)
    assert curve(spec, 110) == hf_curve("linear", 110, 3e-4, num_warmup_steps=warmup, num_training_steps=100)


@pytest.mark.parametrize("warmup", [0, 10])
def test_cosine_equals_transformers(warmup):
    spec = s.HfCosine(kind="hf_cosine", peak=3e-4, warmup_steps=warmup, total_steps=100, cycles=0.5, floor_ratio=0.0)
    assert curve(spec, 100) == hf_curve("cosine", 100, 3e-4, num_warmup_steps=warmup, num_training_steps=100)
    floored = spec.model_copy(update={"floor_ratio": 0.1})
    arguments = {"num_warmup_steps": warmup, "num_training_steps": 100}
    theirs = hf_curve("cosine_with_min_lr", 100, 3e-4, scheduler_specific_kwargs={"min_lr_rate": 0.1}, **arguments)
    assert curve(floored, 100) == theirs


@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt"])
def test_wsd_equals_transformers(shape):
    spec = s.Wsd(kind="wsd", peak=3e-4, floor_ratio=0.1, warmup_steps=10, stable_steps=40, decay_steps=30,
                 warmup_shape=shape, decay_shape=shape, cycles=0.5)  # fmt: skip
    own = {
        "num_decay_steps": 30,
        "num_stable_steps": 40,
        "warmup_type": shape,
        "decay_type": shape,
        "min_lr_ratio": 0.1,
    }
    theirs = hf_curve("warmup_stable_decay", 90, 3e-4, num_warmup_steps=10, scheduler_specific_kwargs=own)
    assert curve(spec, 90) == theirs


def test_megatron_counts_samples_and_ends_at_the_floor():
    spec = s.Megatron(kind="megatron", decay="cosine", initial=0.0, peak=1.0, floor=0.1, warmup=64, decay_until=640,
                      increment=32, wsd_decay=0, wsd_shape="linear")  # fmt: skip
    assert curve(spec, 3) == [0.0, 0.5, 1.0]
    assert s.lr_at(spec, 11) == pytest.approx(0.55)  # half way between warm-up and end
    assert s.lr_at(spec, 20) == pytest.approx(0.1)
    assert s.lr_at(spec, 1000) == 0.1


def test_megatron_wsd_is_flat_and_then_falls():
    spec = s.Megatron(kind="megatron", decay="WSD", initial=0.0, peak=1.0, floor=0.0, warmup=0, decay_until=10,
                      increment=1, wsd_decay=4, wsd_shape="minus_sqrt")  # fmt: skip
    assert [s.lr_at(spec, step) for step in (0, 6, 7, 10)] == [1.0, 1.0, 0.5, 0.0]


def test_nanogpt_changed_its_first_rate():
    fields = {"kind": "nanogpt", "peak": 1.0, "floor": 0.1, "warmup_steps": 4, "decay_steps": 10}
    old = s.NanoGpt(warmup_divisor="warmup", **fields)
    new = s.NanoGpt(warmup_divisor="warmup_plus_one", **fields)
    assert curve(old, 4) == [0.0, 0.25, 0.5, 0.75]
    assert curve(new, 4) == [0.2, 0.4, 0.6, 0.8]
    assert s.lr_at(new, 4) == 1.0
    assert s.lr_at(new, 7) == pytest.approx(0.55)
    assert s.lr_at(new, 11) == 0.1


def test_llmc_works_in_single_precision():
    spec = s.LlmC(kind="llmc", peak=6e-4, floor_ratio=0.0, warmup_steps=700, total_steps=19_560)
    # 6e-4f * 1.0f / 700: all in C floats
    assert s.lr_at(spec, 0) == float(torch.tensor(6e-4, dtype=torch.float32) / 700)
    assert s.lr_at(spec, 700) == float(torch.tensor(6e-4, dtype=torch.float32))
    assert s.lr_at(spec, 19_560) == 0.0


def test_open_lm_warms_up_from_one_step_and_clamps_after_it():
    spec = s.OpenLm(kind="open_lm", peak=1.0, cooldown=0.0, floor=0.3, warmup_steps=4, total_steps=8)
    assert curve(spec, 4) == [0.25, 0.5, 0.75, 1.0]
    assert [round(s.lr_at(spec, step), 6) for step in (4, 6, 8)] == [1.0, 0.5, 0.3]


SPECS = (V1, LATER, s.HfLinear(kind="hf_linear", peak=3e-4, warmup_steps=10, total_steps=100),
         s.HfCosine(kind="hf_cosine", peak=1.0, warmup_steps=3, total_steps=50, cycles=0.5, floor_ratio=0.0),
         s.LlmC(kind="llmc", peak=1.0, floor_ratio=0.1, warmup_steps=3, total_steps=200_000))  # fmt: skip


@given(spec=st.sampled_from(SPECS), step=st.integers(0, 143_000))
def test_every_rate_lies_between_zero_and_the_peak(spec, step):
    assert 0 <= s.lr_at(spec, step) <= spec.peak * (1 + 1e-6)


@given(spec=st.sampled_from(SPECS))
def test_a_schedule_comes_back_from_its_plain_data(spec):
    again = TypeAdapter(s.ScheduleSpec).validate_python(spec.model_dump(mode="json"))
    assert again == spec
    assert again.digest() == spec.digest()


def test_no_field_of_a_schedule_has_a_default():
    kinds = s.AnySchedule.__args__
    assert all(field.is_required() for kind in kinds for field in kind.model_fields.values())
