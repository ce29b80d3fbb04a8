"""W = 4 ranks on two and on four real processes: what they save goes on as one process and as four, to the same bits."""

import shutil

import pytest

import live
import tiny_recipe
from pretrace.checkpoint import open_state
from pretrace.recipe import to_yaml
from pretrace.train import RunFolder, resume, run
from runs import assert_same, same_weights
from tiny import MUL

AVG = [{"where": "wire_post", "op": "div", "by": "world_size"}]
RING = {"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}
COMMON = {
    "step.world_size": 4, "step.micro_batch": 1, "step.loss.denominator": "global_tokens", "step.reduction.order": RING,
    "checkpoints.at": [],
}  # fmt: skip
DDP = {
    **COMMON,
    "step.reduction.buckets": {"kind": "ddp", "cap_mb": 25, "first_cap_mb": 1, "restart": "anew"},
    "step.reduction.scaling": [MUL], "step.reduction.scaling_first": [MUL],
}  # fmt: skip
FSDP2 = {
    **COMMON,
    "step.reduction.buckets": {"kind": "fsdp2", "units": ["blocks.*"]}, "step.reduction.collective": "reduce_scatter",
    "step.reduction.scaling": AVG, "step.reduction.scaling_first": AVG, "step.kernels.mixed": "cast",
    "step.optimizer.kernel": "torch_loop",
    "step.clip": {"max_norm": 1.0, "scope": "shards", "norm": "tensors", "rule": "torch", "eps": 1e-6},
}  # fmt: skip
ENGINES = {"ddp": DDP, "zero1": DDP, "fsdp2": FSDP2}


def how(folder, name, engine, steps):
    return {
        "recipe": str(folder / f"{name}.yaml"),
        "folder": str(folder / f"run-{name}"),
        "steps": steps,
        "engine": engine,
    }


@pytest.mark.distributed
@pytest.mark.timeout(400)  # two starts of several interpreters, on a machine that may be busy
def test_runs_of_two_and_four_processes_go_on_as_one_and_as_four(tmp_path):
    recipes = {name: tiny_recipe.recipe(tmp_path).with_values(edits) for name, edits in ENGINES.items()}
    plans = {"plan-ddp": recipes["ddp"], "plan-fsdp2": recipes["fsdp2"]}
    for name, recipe in {**recipes, **plans}.items():
        (tmp_path / f"{name}.yaml").write_text(to_yaml(recipe))
        if name != "zero1":
            run(recipe, tmp_path / f"whole-{name}")
    whole = {**{n: tmp_path / f"whole-{n}" for n in (*recipes, *plans)}, "zero1": tmp_path / "whole-ddp"}

    # Two processes share the four ranks, stop at step 6; four go on from there, and one does.
    (tmp_path / "two").mkdir()
    live.launch(2, "live.training", [how(tmp_path, name, "plan", 6) for name in plans], tmp_path / "two")
    for name in plans:
        shutil.copytree(tmp_path / f"run-{name}", tmp_path / f"one-{name}")
        resume(tmp_path / f"one-{name}", changes={"steps": 12})
    (tmp_path / "four").mkdir()
    more = [how(tmp_path, name, "plan", 12) for name in plans]
    # Engines make the first six updates by themselves; one process goes on with the plan.
    live.launch(4, "live.training", [*more, *(how(tmp_path, name, name, 6) for name in recipes)], tmp_path / "four")
    for name in plans:
        assert_same(tmp_path / f"one-{name}", whole[name])
        assert_same(tmp_path / f"run-{name}", whole[name])
    for name in recipes:
        resume(tmp_path / f"run-{name}", changes={"steps": 12})
        assert same_weights(tmp_path / f"run-{name}", whole[name]), name

    shards = RunFolder(tmp_path / "run-fsdp2").checkpoint(6) / "train_state" / "shards"
    with open_state(shards) as view:
        assert view.info("param.embed.weight").shape == (tiny_recipe.VOCAB, 16)
    assert len(list(shards.glob("*.distcp"))) == 4
