"""Plans from the values of NeoX and open_lm: what differs between versions and flags is what these tests write out."""

import pytest

from pretrace.errors import PretraceError
from pretrace.step.importers_neox import from_neox
from pretrace.step.importers_open_lm import from_open_lm
from pretrace.step.schedule import lr_at

# pythia-2.8b as its configuration publishes it (EleutherAI/pythia, models/2.8B)
PYTHIA = {
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1, "train-iters": 143000, "lr-decay-iters": 143000,
    "lr-decay-style": "cosine", "warmup": 0.01, "min_lr": 1.6e-5, "weight-decay": 0.1, "gradient_clipping": 1.0,
    "pipe-parallel-size": 1, "optimizer": {"type": "Adam", "params": {"lr": 1.6e-4, "betas": [0.9, 0.95], "eps": 1e-8}},
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 1000, "hysteresis": 2,
             "min_loss_scale": 1},
}  # fmt: skip
OPEN_LM = {"world_size": 8, "per_gpu_batch_size": 16, "accum_freq": 4, "lr": 1e-3, "warmup": 100, "total_steps": 1000,
           "fsdp": True, "grad_clip_norm": 1.0, "wd": 0.1}  # fmt: skip


def test_pythia_is_1024_sequences_with_fp16_sums_and_a_rate_of_zero_first():
    plan = from_neox(PYTHIA, 64, {}, version="v1.0")
    assert plan.global_batch == 1024
    assert (plan.reduce_dtype, plan.reduction.scaling[0].where, plan.clip.scope) == ("float16", "wire_post", "global")
    assert (plan.loss_scale.initial, plan.loss_scale.rule) == (4096.0, "deepspeed_early")
    assert [lr_at(plan.schedule, step) for step in (0, 115_139, 143_000)] == [0.0, 1.6e-5, 1.6e-5]
    assert plan.source("reduction.order").kind == "assumed"


def test_the_same_values_are_another_curve_in_a_later_release():
    plans = {v: from_neox(PYTHIA, 64, {}, version=v) for v in ("v1.0", "v2.0", "head")}
    assert lr_at(plans["v1.0"].schedule, 115_000) < 0.56 * lr_at(plans["v2.0"].schedule, 115_000)
    assert lr_at(plans["v2.0"].schedule, 0) == 0 < lr_at(plans["head"].schedule, 0)
    assert plans["head"].source("reduction.scaling").kind == "assumed"


def test_the_pipeline_flag_decides_the_scope_of_the_clip():
    assert from_neox(PYTHIA | {"pipe-parallel-size": 0}, 64, {}, version="v1.0").clip.scope == "local"
    assert from_neox(PYTHIA, 64, {}, version="head").clip.scope == "global"
    later = from_neox(PYTHIA, 64, {}, version="v2.0")  # its test for the pipeline is >= 2
    assert (later.clip.scope, later.source("clip").kind) == ("global", "assumed")


def test_gas_follows_from_the_batch_where_it_is_not_written():
    values = {k: v for k, v in PYTHIA.items() if k != "gradient_accumulation_steps"} | {"train_batch_size": 1024}
    assert from_neox(values, 8, {}, version="v1.0").grad_accum_steps == 8
    with pytest.raises(PretraceError, match="no multiple"):
        from_neox(values, 7, {}, version="v1.0")


def test_a_value_that_decides_the_arithmetic_is_not_guessed():
    with pytest.raises(PretraceError, match="no train-iters"):
        from_neox({k: v for k, v in PYTHIA.items() if k != "train-iters"}, 64, {}, version="v1.0")
    with pytest.raises(PretraceError, match="no lr"):
        from_open_lm({k: v for k, v in OPEN_LM.items() if k != "lr"}, {})


@pytest.mark.parametrize(("flag", "wire", "compute", "mixed"), [
    ("fsdp_amp", "float32", "bfloat16", "cast"),
    ("fsdp_pure_bf16", "bfloat16", "bfloat16", "cast"),
    ("fsdp_limit_all_gathers", "float32", "float32", "autocast"),
])  # fmt: skip
def test_open_lm_flags_decide_the_wire(flag, wire, compute, mixed):
    plan = from_open_lm(OPEN_LM | {flag: True}, {})
    assert (plan.reduce_dtype, plan.kernels.compute_dtype, plan.kernels.mixed) == (wire, compute, mixed)
    assert (plan.global_batch, plan.micro_batch) == (128, 4)


def test_limit_all_gathers_changes_no_number():
    assert from_open_lm(OPEN_LM | {"fsdp_limit_all_gathers": True}, {}).digest() == from_open_lm(OPEN_LM, {}).digest()


def test_open_lm_z_loss_is_another_formula_and_says_so():
    plan = from_open_lm(OPEN_LM | {"z_loss_coefficient": 1e-4}, {})
    assert plan.source("loss.z_loss").kind == "assumed"
    assert "squares the mean" in plan.source("loss.z_loss").where


def test_flags_that_exclude_each_other_are_refused():
    with pytest.raises(PretraceError, match="exclude each other"):
        from_open_lm(OPEN_LM | {"fsdp_amp": True, "fsdp_pure_bf16": True}, {})


def test_a_declared_order_replaces_the_assumed_one():
    ring = {"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}
    plan = from_open_lm(OPEN_LM, {"reduction.order": ring})
    assert plan.source("reduction.order").kind == "declared"
    assert plan.reduction.order.kind == "gloo_ring"
