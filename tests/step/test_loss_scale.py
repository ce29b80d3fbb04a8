"""The loss scale falls, waits and grows as its program's does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.step.loss_scale import DynamicScale, NoScale, StaticScale, advance, start


def dynamic(rule, **changes):
    fields = {"kind": "dynamic", "rule": rule, "initial": 4096.0, "growth": 2.0, "backoff": 0.5, "window": 3,
              "hysteresis": 1, "consecutive_hysteresis": False, "minimum": 1.0}  # fmt: skip
    return DynamicScale(**(fields | changes))


def scales(spec, overflows):
    state, out = start(spec), []
    for overflow in overflows:
        state, skipped = advance(spec, state, overflow=overflow)
        assert skipped == overflow
        out.append(state.scale)
    return out


def test_neox_forgives_the_first_overflow_and_counts_its_window_from_before_the_start():
    spec = dynamic("deepspeed_early", hysteresis=2)
    # iterations 0, 1, 2: (2 - -1) % 3 == 0, the scale doubles after the third
    assert scales(spec, [False] * 3) == [4096, 4096, 8192]
    assert scales(spec, [True, True, True]) == [4096, 2048, 1024]


def test_deepspeed_today_grows_one_iteration_later():
    assert scales(dynamic("deepspeed"), [False] * 4) == [4096, 4096, 4096, 8192]
    assert scales(dynamic("deepspeed_early"), [False] * 4) == [4096, 4096, 8192, 8192]


def test_consecutive_hysteresis_refills_the_credit_at_once():
    overflows = [True, False, True, False, True]
    assert scales(dynamic("deepspeed", hysteresis=2, window=100), overflows)[-1] == 1024
    assert scales(dynamic("deepspeed", hysteresis=2, window=100, consecutive_hysteresis=True), overflows)[-1] == 4096


def test_megatron_refills_its_credit_only_by_growth():
    spec = dynamic("megatron", hysteresis=2)
    assert scales(spec, [True, False, True, False, True]) == [4096, 4096, 2048, 2048, 1024]
    assert scales(spec, [True, True, False, False, False, True]) == [4096, 2048, 2048, 2048, 4096, 4096]


def test_the_scale_never_falls_below_its_minimum():
    assert scales(dynamic("megatron", minimum=1024.0), [True] * 5)[-1] == 1024


@settings(max_examples=30, deadline=None)
@given(overflows=st.lists(st.booleans(), min_size=1, max_size=25))
def test_torch_rule_equals_grad_scaler(overflows):
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    theirs = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight.sum() * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        theirs.append(scaler.get_scale())
    assert scales(dynamic("torch"), overflows) == theirs


@pytest.mark.interop
@settings(max_examples=50, deadline=None)
@given(
    overflows=st.lists(st.booleans(), min_size=1, max_size=40), hysteresis=st.integers(1, 3), consecutive=st.booleans()
)
def test_deepspeed_rule_equals_its_scaler(overflows, hysteresis, consecutive):
    from deepspeed.runtime.fp16 import loss_scaler

    loss_scaler.dist.get_rank = lambda: 1  # it wants a process group, only to decide who logs
    theirs = loss_scaler.DynamicLossScaler(4096.0, 3, 1.0, hysteresis, consecutive, raise_error_at_min_scale=False)
    out = []
    for overflow in overflows:
        theirs.update_scale(overflow)
        out.append(theirs.cur_scale)
    spec = dynamic("deepspeed", hysteresis=hysteresis, consecutive_hysteresis=consecutive)
    assert scales(spec, overflows) == out


def test_a_static_scale_skips_and_stays():
    assert scales(StaticScale(kind="static", scale=128.0), [True, False]) == [128, 128]


def test_an_overflow_without_any_scale_is_an_error_that_says_so():
    spec = NoScale(kind="none")
    with pytest.raises(PretraceError, match="no loss scale that could be lowered"):
        advance(spec, start(spec), overflow=True)


def test_a_rule_is_not_asked_for_what_it_does_not_have():
    with pytest.raises(ValueError, match="no hysteresis"):
        dynamic("torch", hysteresis=2)
    with pytest.raises(ValueError, match="DeepSpeed"):
        dynamic("megatron", consecutive_hysteresis=True)
