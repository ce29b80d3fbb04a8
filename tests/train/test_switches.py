"""Every switch of architecture and precision trains, resumes to the same bits, and lowers its held-out loss."""

import shutil

import pytest

import tiny_recipe
from pretrace.data.tokenfile import write_pair
from pretrace.train import resume, run
from runs import assert_same, log

NATIVE = {"model.family": "native"}
DYNAMIC = {
    "kind": "dynamic", "rule": "torch", "initial": 65536.0, "window": 4, "growth": 2.0, "backoff": 0.5, "hysteresis": 1,
    "minimum": 1.0, "consecutive_hysteresis": False,
}  # fmt: skip
SWITCHES = {
    "learned positions": {**NATIVE, "model.position": "learned", "model.rotary_pct": 0.0, "model.rotary_base": 0.0},
    "rmsnorm": {**NATIVE, "model.norm": "rmsnorm"},
    "post norm": {**NATIVE, "model.norm_place": "post", "model.residual": "sequential"},
    "sequential residual": {"model.residual": "sequential"},
    "gelu tanh": {"model.activation": "gelu_tanh"},
    "relu": {"model.activation": "relu"},
    "swiglu": {**NATIVE, "model.activation": "silu", "model.gated": True},
    "no biases": {**NATIVE, "model.bias": False},
    "tied head": {"model.tied_head": True},
    "grouped queries": {**NATIVE, "model.n_kv_heads": 1},
    "experts": {**NATIVE, "model.moe": {"n_experts": 4, "top_k": 2, "load_balance": 0.01, "router_z": 0.001}},
    "one expert a token": {**NATIVE, "model.moe": {"n_experts": 3, "top_k": 1, "load_balance": 0.01, "router_z": 0.0}},
    "eager attention": {"step.kernels.attention": "eager"},
    "math attention": {"step.kernels.attention": "math"},
    "flash attention": {"step.kernels.attention": "flash"},
    "dropout": {"model.dropout": {"embed": 0.05, "attention": 0.05, "residual": 0.05}, "step.kernels.attention": "eager"},
    "recomputed blocks": {"step.kernels.recompute": True},
    "loss by rows": {"step.kernels.loss_rows": 7},
    "z-loss": {"step.loss.z_loss": 1e-3},
    "bf16 autocast": {"step.kernels.compute_dtype": "bfloat16"},
    "bf16 autocast, loss by rows": {"step.kernels.compute_dtype": "bfloat16", "step.kernels.loss_rows": 7},
    "bf16 throughout": {
        "step.kernels.param_dtype": "bfloat16", "step.kernels.compute_dtype": "bfloat16", "step.accum_dtype": "bfloat16",
        "step.reduce_dtype": "bfloat16",
    },
    "fp16 with a scaler": {"step.kernels.compute_dtype": "float16", "step.loss_scale": DYNAMIC},
}  # fmt: skip


def held_out(folder):
    """Documents that training does not read."""
    prefix = folder / "held_out"
    if not prefix.with_suffix(".idx").exists():
        write_pair(prefix, tiny_recipe.documents(n=12, seed=99), "uint16")
    data = tiny_recipe.recipe_data(folder / "tokens")["data"]
    data["sources"] = [{**data["sources"][0], "path": str(prefix)}]
    data["order"] = {**data["order"], "num_samples": 16}
    return {"every": 6, "data": data, "n_samples": 16, "micro_batch": 8, "target": None}


def recipe(folder, edits, **more):
    edits = {"evaluation": held_out(folder), "checkpoints.at": [], **edits, **more}
    if edits.get("step.loss_scale"):
        # two keys that only fit each other: set at once
        step = {**tiny_recipe.STEP, "loss_scale": edits.pop("step.loss_scale")}
        step["kernels"] = {**step["kernels"], "compute_dtype": edits.pop("step.kernels.compute_dtype")}
        edits["step"] = step
    return tiny_recipe.recipe(folder).with_values(edits)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_trains_resumes_and_lowers_its_held_out_loss(tmp_path, switch):
    whole = recipe(tmp_path, SWITCHES[switch])
    run(whole, tmp_path / "whole")
    run(whole.with_values({"steps": 7}), tmp_path / "parts")
    resume(tmp_path / "parts", changes={"steps": 12})
    rows, again = log(tmp_path / "whole"), log(tmp_path / "parts")
    del again[6]["notes"]  # the end of the first part was evaluated
    assert [{**r, "notes": 0} for r in rows] == [{**r, "notes": 0} for r in again]
    losses = [r["notes"]["held_out_loss"] for r in rows if r["notes"]]
    assert losses[-1] < losses[0] - 0.1
    shutil.copy(tmp_path / "whole" / "log.jsonl", tmp_path / "parts" / "log.jsonl")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_recomputed_blocks_have_the_bits_of_kept_ones(tmp_path):
    run(recipe(tmp_path, {}), tmp_path / "kept")
    run(recipe(tmp_path, {"step.kernels.recompute": True}), tmp_path / "again")
    assert_same(tmp_path / "kept", tmp_path / "again")


def test_dropout_does_not_know_the_topology(tmp_path):
    """With an exact reduction, masks by sample leave no trace of how samples fall on ranks (transformers#31412)."""
    exact = {
        "step.reduction.order": {"kind": "exact", "exponent": 40}, "step.micro_batch": 1, **SWITCHES["dropout"],
    }  # fmt: skip
    run(recipe(tmp_path, exact, **{"step.world_size": 4}), tmp_path / "ranks")
    run(recipe(tmp_path, exact, **{"step.world_size": 1, "step.grad_accum_steps": 4}), tmp_path / "gas")
    assert_same(tmp_path / "ranks", tmp_path / "gas")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_step_trains_and_resumes(tmp_path):
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("torch.compile needs a C++ compiler on this machine")
    whole = recipe(tmp_path, {"step.kernels.compile": True})
    run(whole, tmp_path / "whole")
    run(whole.with_values({"steps": 6}), tmp_path / "parts")
    resume(tmp_path / "parts", changes={"steps": 12})
    assert_same(tmp_path / "whole", tmp_path / "parts")
