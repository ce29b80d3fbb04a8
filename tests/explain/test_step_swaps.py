"""explain --step: of several fields that differ, the one that was planted comes first."""

import math

import pytest
import torch

from pretrace.explain import differing, swapped
from pretrace.explain.step_swaps import Question, explain_step
from pretrace.step.schedule import Neox
from tiny import DIRECT, TREE, gpt, plan, read

PYTHIA = {"decay": "cosine", "peak": 3e-3, "floor": 3e-4, "warmup_steps": 10, "total_steps": 1000}
V1 = {"kind": "neox_v1", **PYTHIA}
NOW = Neox(kind="neox", first_step=1, **PYTHIA).model_dump(mode="json")
# Differences that must not matter: another order of additions, another spread of the same batch, other buckets.
BENIGN = {
    "reduction.order": TREE, "world_size": 4, "grad_accum_steps": 1, "reduction.buckets": {"kind": "capped", "cap_numel": 5000},
    "optimizer.kernel": "torch_loop",
}  # fmt: skip
PLANTED = {
    "loss.denominator": "micro_mean",
    "loss.count": "before_shift",
    "loss.z_loss": 1e-3,
    "accum_dtype": "bfloat16",
    "reduce_dtype": "bfloat16",
    "kernels.compute_dtype": "bfloat16",
    "clip.max_norm": 0.01,
    "clip": None,
    "optimizer.betas": [0.9, 0.999],
    "optimizer.eps": 1e-4,
    "optimizer.groups": [{"params": ["*"], "ndim": "any", "weight_decay": 1.0, "lr_scale": 1.0}],
    "schedule": NOW,
}


def ragged(positions):
    return read(positions, ragged=True)


def base(**changes):
    fields = {
        "grad_accum_steps": 2, "loss.denominator": "global_tokens", "schedule": V1, "reduction.order": DIRECT,
        "clip.max_norm": 0.05, **changes,
    }  # fmt: skip
    return plan().with_(fields)


def ask(a, b, **more):
    return explain_step(Question(a, b, gpt(), ragged, **more))


@pytest.mark.parametrize("field", PLANTED)
def test_the_planted_change_comes_first_among_benign_ones(field):
    a = base()
    b = a.with_({**BENIGN, field: PLANTED[field]})
    found = ask(a, b, at_step=500)
    assert {e.swap.field for e in found.effects} == {
        "topology", "reduction.order", "reduction.buckets", "optimizer.kernel", field,
    }  # fmt: skip
    assert found.first.swap.field == field
    assert found.sentence.startswith(f"{field} moves this update most")
    others = [e.update for e in found.effects if e.swap.field != field]
    assert found.first.update > 10 * max(others)


def test_the_same_plan_twice_has_no_effect():
    found = ask(base(), base())
    assert found.effects == ()
    assert (found.whole.update, found.whole.gradient, found.base.update_cosine) == (0.0, 0.0, 1.0)
    assert "no field differs" in found.sentence


def test_a_reduction_that_sums_is_no_other_update_the_loss_carries_the_division():
    a = base()
    found = ask(a, a.with_({"reduction.scaling": [], "reduction.scaling_first": []}))
    assert found.first.gradient < 1e-6


def test_another_denominator_shows_as_gain_and_cosine():
    # All positions count: padding makes the gradient smaller by the share of counted labels, the direction stays.
    a = base()
    (effect,) = ask(a, a.with_({"loss.denominator": "positions"})).effects
    labels = ragged(range(24, 32)).labels
    assert effect.gain == pytest.approx((labels != -100).mean(), rel=1e-5)
    assert effect.gradient_cosine == pytest.approx(1.0, abs=1e-9)


def test_half_the_limit_is_half_the_clip_coefficient():
    a = base()
    (effect,) = ask(a, a.with_({"clip.max_norm": 0.025})).effects
    assert effect.clip_coefficient == pytest.approx(0.5 * ask(a, a).base.clip_coefficient, rel=1e-3)
    assert effect.gradient == 0.0  # before clipping nothing differs


def test_bf16_on_the_wire_leaks_along_the_direction_that_the_loss_cannot_see():
    a = base()
    found = ask(a, a.with_({"reduce_dtype": "bfloat16"}))
    (effect,) = found.effects
    assert found.base.head_leak < 1e-6 < 1e-4 < effect.head_leak


def test_an_overflow_is_seen_as_a_skipped_update():
    a = base(loss_scale={"kind": "static", "scale": 1.0}, reduce_dtype="float16")
    (effect,) = ask(a, a.with_({"loss_scale.scale": 1e8})).effects  # the wire holds no more than 65,504
    assert effect.skipped
    assert math.isnan(effect.update_cosine)
    assert effect.update == 1.0


def test_a_field_that_cannot_stand_alone_says_why():
    a = base()
    b = a.with_({"loss_scale": {"kind": "static", "scale": 64.0}}).with_({"kernels.compute_dtype": "float16"})
    found = ask(a, b)
    (fault,) = [e for e in found.effects if e.swap.field == "kernels.compute_dtype"]
    assert "without a loss scale" in fault.fault
    assert found.effects[-1] is fault


def test_the_state_that_is_asked_about_is_left_alone():
    model = gpt()
    before = [p.detach().clone() for p in model.parameters()]
    explain_step(Question(base(), base(**{"loss.z_loss": 1e-3}), model, ragged))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))


def test_parts_of_different_kinds_are_swapped_whole_and_topology_as_one():
    a = base()
    b = a.with_({"schedule": NOW, "clip": None, "world_size": 1, "grad_accum_steps": 4, "optimizer.eps": 1e-6})
    fields = {swap.field: swap for swap in differing(a, b)}
    assert list(fields) == ["topology", "clip", "optimizer.eps", "schedule"]
    assert (fields["topology"].a, fields["topology"].b) == ("2 x 2 x 2", "1 x 4 x 2")
    assert swapped(a, b, fields["topology"]).global_batch == a.global_batch


def test_an_optimizer_kernel_brings_its_rule_where_it_must():
    a = base()
    b = a.with_(
        {
            "optimizer": {
                **a.optimizer.model_dump(mode="json"),
                "kernel": "hf",
                "eps_place": "raw",
                "decay_place": "after",
            }
        }
    )
    kernel = next(swap for swap in differing(a, b) if swap.field == "optimizer.kernel")
    assert swapped(a, b, kernel).optimizer.decay_place == "after"
