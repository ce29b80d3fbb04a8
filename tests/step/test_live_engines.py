"""Real engines against virtual ranks under the same plan: parameters, moments and outcome."""

import pytest
import torch

import live
from live import engines
from live.engines import DDP, FSDP2
from pretrace.errors import PretraceError
from pretrace.step.engine_ddp import DdpEngine, Zero1Engine, share_out
from pretrace.step.engine_fsdp2 import Fsdp2Engine
from tiny import gpt, plan


@pytest.mark.distributed
def test_real_engines_give_the_bits_of_virtual_ranks():
    for how, (bits, outcome) in live.results(3, "engines"):
        expected_bits, expected = engines.virtually(3, how)
        assert torch.equal(bits, expected_bits), how
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        assert outcome.grad_norm == expected.grad_norm
        assert outcome.update_norm == pytest.approx(expected.update_norm, rel=1e-6)  # fp32 norms of shards, then fp64
        assert outcome.param_norm == pytest.approx(expected.param_norm, rel=1e-6)


def test_parameters_are_shared_out_evenly():
    owners = share_out({"a": 8, "b": 4, "c": 3, "d": 1}, 2)
    assert [sum(n for name, n in {"a": 8, "b": 4, "c": 3, "d": 1}.items() if owners[name] == r) for r in (0, 1)] == [
        8,
        8,
    ]


@pytest.fixture
def one_process(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("engine", "changes", "fault"),
    [
        (DdpEngine, {}, "DDP makes DDP's buckets"),
        (DdpEngine, {**DDP, "world_size": 2}, "1 processes cannot be 2 ranks"),
        (DdpEngine, {**DDP, "accum_dtype": "bfloat16"}, "accumulates in the parameters' dtype"),
        (Zero1Engine, {**DDP, "reduction.scaling": []}, "does not divide like that"),
        (DdpEngine, {**DDP, "loss.divide": "gradient"}, "divides in the loss"),
        (Fsdp2Engine, {**FSDP2, "reduction.scaling": []}, "averages as its backend does"),
        (Fsdp2Engine, {**FSDP2, "clip.scope": "global"}, "shard by shard"),
    ],
)
def test_an_engine_refuses_a_plan_that_it_does_not_do(one_process, engine, changes, fault):
    with pytest.raises(PretraceError, match=fault):
        engine(plan().with_({"world_size": 1, **changes}), gpt(d=16), one_process)
