"""Plans read from live torch objects: the same bits where they train, and assumed where nothing can be seen."""

import pytest
import torch
from torch import nn

import live
from pretrace.errors import PretraceError
from pretrace.step.execute import execute
from pretrace.step.importers import groups_of
from pretrace.step.importers_optimizer import name_of, optimizer_of
from pretrace.step.importers_torch import from_loop
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from tiny import flat, gpt, read

HOWS = [
    {"kind": "ddp", "cap_mb": 0.004},
    {"kind": "ddp"},
    {"kind": "ddp", "cap_mb": 0.004, "view": True},
    {"kind": "fsdp2"},
    {"kind": "fsdp2", "bf16": True},
    {"kind": "NO_SHARD"},
    {"kind": "NO_SHARD", "bf16": True},
    {"kind": "FULL_SHARD"},
]


@pytest.mark.distributed
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_an_imported_plan_gives_the_bits_of_the_wrapper_it_was_read_from(world, tmp_path):
    for how, found in zip(HOWS, live.launch(world, "live.wrappers", [{**how, "steps": 4} for how in HOWS], tmp_path)):
        plan, model = StepPlan.from_yaml(found["plan"], where="importer"), gpt(d=16, layers=2)
        state = begin(plan, model)
        for step, theirs in enumerate(found["seen"]):
            execute(plan, state, read, step=step)
            assert torch.equal(flat(model), theirs), (how, step)
        assert plan.world_size == world
        assert plan.source("reduction.order").kind == "read"
        assert plan.source("clip").kind == "assumed"
        assert plan.source("micro_batch").kind == "declared"


def loop(model, make, **declared):
    return from_loop(model, make(model.parameters()), {"micro_batch": 4, **declared})


def test_a_loop_on_one_device_shows_its_optimizer_and_assumes_the_rest():
    plan = loop(gpt(), lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True))
    assert (plan.optimizer.kernel, plan.optimizer.betas, plan.optimizer.eps) == ("torch_fused", (0.9, 0.999), 1e-8)
    assert plan.optimizer.groups[0].weight_decay == 0.01
    assert plan.schedule.peak == 1e-3
    kinds = {key: plan.source(key).kind for key in ("optimizer", "loss", "grad_accum_steps", "micro_batch")}
    assert kinds == {"optimizer": "read", "loss": "assumed", "grad_accum_steps": "assumed", "micro_batch": "declared"}
    assert "assumed: the training loop decides" in plan.describe()


def test_a_declared_part_replaces_what_was_assumed_around_it():
    plan = loop(gpt(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), **{"loss.denominator": "global_tokens"})
    assert (plan.optimizer.kind, plan.loss.denominator, plan.loss.z_loss) == ("sgd", "global_tokens", 0.0)
    assert plan.source("loss.denominator").kind == "declared"
    assert plan.source("loss.count").kind == "assumed"


def test_an_unknown_declared_key_is_refused():
    with pytest.raises(PretraceError, match="stepsize"):
        loop(gpt(), torch.optim.AdamW, stepsize=1)


def test_groups_become_a_rule_where_one_fits_and_names_where_none_does():
    ndims = {"a.weight": 2, "a.bias": 1, "norm.weight": 1}
    by_axes = groups_of([(["a.weight"], 0.1, 1.0), (["a.bias", "norm.weight"], 0.0, 1.0)], ndims)
    assert [g.ndim for g in by_axes] == ["matrix", "any"]
    odd = groups_of([(["a.weight", "norm.weight"], 0.1, 1.0), (["a.bias"], 0.0, 0.5)], ndims)
    assert [g.params for g in odd] == [("a.weight", "norm.weight"), ("a.bias",)]
    assert odd[1].lr_scale == 0.5
    with pytest.raises(PretraceError, match="in no group"):
        groups_of([(["a.weight"], 0.1, 1.0)], ndims)


def test_a_fp16_loop_shows_its_scaler():
    model = gpt().half()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    plan = from_loop(model, optimizer, {"micro_batch": 4}, scaler=scaler)
    assert (plan.loss_scale.rule, plan.loss_scale.initial, plan.loss_scale.window) == ("torch", 1024.0, 100)
    with pytest.raises(PretraceError, match="without a loss scale"):
        from_loop(model, optimizer, {"micro_batch": 4})


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p, amsgrad=True), lambda p: torch.optim.AdamW(p, maximize=True), torch.optim.Adagrad,
])  # fmt: skip
def test_an_optimizer_that_plans_do_not_have_is_refused_by_name(make):
    model = nn.Linear(2, 2)
    with pytest.raises(PretraceError, match=r"amsgrad|maximize|Adagrad"):
        optimizer_of(make(model.parameters()), model)


def test_names_lose_what_wrappers_put_in():
    assert name_of("module._orig_mod.blocks.0.norm1.weight") == "blocks.0.norm1.weight"
