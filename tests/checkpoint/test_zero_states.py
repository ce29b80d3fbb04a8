"""ZeRO optimizer states: cut back into parameters, by hand and as DeepSpeed itself gathers them."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from pretrace.checkpoint import open_state, read_all, survey


def saved(folder, ranks, paddings=None, step=3, count=None):
    """Two parameters, a [2, 2] and b [3], in one flat group of 8 shared by the ranks (one element of padding at the end)."""
    flat = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 0])
    if paddings:
        flat = torch.tensor([1.0, 2, 3, 4, 99, 5, 6, 7])
    (folder / "global_step3").mkdir(parents=True)
    shapes = [{"a": torch.Size([2, 2]), "b": torch.Size([3])}]
    module = {"a": torch.zeros(2, 2), "b": torch.zeros(3)}
    torch.save(
        {"module": module, "param_shapes": shapes, "global_steps": 3},
        folder / "global_step3" / "mp_rank_00_model_states.pt",
    )
    for rank, piece in enumerate(flat.chunk(ranks)):
        state = {"state": {0: {"step": step, "exp_avg": piece * 10, "exp_avg_sq": piece * 100}}, "param_groups": []}
        optimizer = {
            "zero_stage": 1,
            "partition_count": count or ranks,
            "single_partition_of_fp32_groups": [piece.clone()],
            "base_optimizer_state": state,
        }
        if paddings:
            optimizer["param_alignment_paddings"] = [paddings]
        torch.save(
            {"optimizer_state_dict": optimizer},
            folder / "global_step3" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pieces_of_any_number_of_ranks_join_to_the_parameters(ranks, tmp_path):
    with open_state(saved(tmp_path, ranks)) as view:
        assert read_all(view, "optimizer.fp32.a").tolist() == [[1, 2], [3, 4]]
        assert read_all(view, "optimizer.exp_avg.b").tolist() == [50, 60, 70]
        assert view.read("optimizer.exp_avg_sq.a", 1, 3).tolist() == [200, 300]
        assert {"a", "b"} <= set(view.names())
        assert view.format == "deepspeed"


def test_gaps_between_parameters_are_skipped(tmp_path):
    with open_state(saved(tmp_path, 2, paddings=[1, 0])) as view:
        assert read_all(view, "optimizer.fp32.b").tolist() == [5, 6, 7]


def test_a_rank_that_is_missing_and_a_step_that_is_not_the_models_are_said(tmp_path):
    assert [f.code for f in survey(saved(tmp_path / "a", 2, count=4)).findings] == ["files-optimizer"]
    assert [f.code for f in survey(saved(tmp_path / "b", 1, step=2)).findings] == ["step-optimizer"]


DEEPSPEED = """
import os, sys, torch
folder, rank, port = sys.argv[1], sys.argv[2], sys.argv[3]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, DS_ACCELERATOR="cpu")
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # needs a compiler, is not needed
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
deepspeed.init_distributed("gloo")
for stage, half in ((1, False), (2, False), (1, True)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 7))
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": half},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    x = torch.full((1, 3), 1.0 + int(rank), dtype=torch.bfloat16 if half else torch.float32)
    engine.backward(engine(x).float().square().sum()); engine.step()
    engine.save_checkpoint(f"{folder}/{stage}{half}")
    truth = {}
    for name, p in engine.module.named_parameters():
        truth[f"fp32.{name}"] = safe_get_full_fp32_param(p).clone()
        for kind in ("exp_avg", "exp_avg_sq"):
            truth[f"{kind}.{name}"] = safe_get_full_optimizer_state(p, kind).clone()
    if rank == "0":
        torch.save(truth, f"{folder}/{stage}{half}.truth")
"""


@pytest.mark.interop
@pytest.mark.distributed
def test_what_deepspeed_saves_on_two_ranks_is_what_it_gathers(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DEEPSPEED, str(tmp_path)]
    running = [subprocess.Popen([*command, str(rank), port], env=environment) for rank in (0, 1)]
    try:
        assert [process.wait(timeout=100) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    for form in ("1False", "2False", "1True"):
        truth = torch.load(tmp_path / f"{form}.truth")
        with open_state(tmp_path / form) as view:
            assert view.verify() == ()
            for name, tensor in truth.items():
                assert np.array_equal(read_all(view, f"optimizer.{name}"), tensor.float().numpy()), (form, name)
