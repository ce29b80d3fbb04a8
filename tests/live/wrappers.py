"""DDP, FSDP2 and FSDP1 around a small model: trains a few steps, and tells the plan that the importers read before."""

import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tiny import gpt, read

LOSS = {"denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0.0,
        "z_loss_on": "counted"}  # fmt: skip


def wrap(model, world, how):
    if how["kind"] == "ddp":
        return DistributedDataParallel(
            model, bucket_cap_mb=how.get("cap_mb"), gradient_as_bucket_view=how.get("view", False)
        )
    low = torch.bfloat16 if how.get("bf16") else None
    if how["kind"] == "fsdp2":
        rules = {
            "mesh": init_device_mesh("cpu", (world,)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low),
        }
        for block in model.blocks:
            fully_shard(block, **rules)
        return fully_shard(model, **rules)
    warnings.simplefilter("ignore")
    return Fsdp1(
        model,
        sharding_strategy=ShardingStrategy[how["kind"]],
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or type(module).__name__ == "Block",
        mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=low),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def whole(model, how):
    if how["kind"] == "ddp":
        full = [p.detach() for p in model.parameters()]
    elif how["kind"] == "fsdp2":
        full = [p.detach().full_tensor() for p in model.parameters()]
    else:
        with Fsdp1.summon_full_params(model):
            full = [p.detach().clone() for p in model.parameters()]
    return torch.cat([p.flatten() for p in full]).view(torch.int32)


def importer(kind):
    from pretrace.step import importers_torch

    return {"ddp": importers_torch.from_ddp, "fsdp2": importers_torch.from_fsdp2}.get(kind, importers_torch.from_fsdp1)


def run(rank, world, how):
    model = wrap(gpt(d=16, layers=2), world, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    plan = importer(how["kind"])(model, optimizer, {"micro_batch": 2, "loss": LOSS})
    seen = []
    for step in range(how["steps"]):
        optimizer.zero_grad(set_to_none=not how.get("view", False))
        start = (step * world + rank) * 2
        batch = read(range(start, start + 2))
        z = model(torch.from_numpy(batch.tokens))
        F.cross_entropy(z.reshape(-1, z.shape[-1]).float(), torch.from_numpy(batch.labels).reshape(-1)).backward()
        optimizer.step()
        seen.append(whole(model, how))
    return {"seen": seen, "plan": plan.to_yaml()}
