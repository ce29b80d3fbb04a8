"""Plain FSDP2 and FSDP1 as a user writes them: nothing of pretrace's executor is in here."""

import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.nn import functional as F

from tiny import gpt, read

STRATEGY = {"full": ShardingStrategy.FULL_SHARD, "none": ShardingStrategy.NO_SHARD}


BASE = {
    "kind": "fsdp2",
    "compute": "float32",
    "wire": "float32",
    "gas": 1,
    "micro": 2,
    "clip": None,
    "steps": 10,
    "orig": True,
}
BF16 = {"compute": "bfloat16", "wire": "bfloat16"}


def default(world):
    """What the default suite runs; `full` has all that is claimed."""
    if world == 8:
        return []
    some = [{**BASE, **BF16, "gas": 3, "clip": 0.05}, {**BASE, "kind": "none", "wire": "bfloat16", "clip": 0.05}]
    return [{**how, "steps": 5} for how in (some if world != 3 else [*some, {**BASE, "kind": "full", "clip": 0.05}])]


def full(world):
    """FSDP2, NO_SHARD and FULL_SHARD; fp32 and bf16; gas 3; clipped; original and flat parameters."""
    return [
        {**BASE, "clip": 0.05},
        {**BASE, "kind": "full", "clip": 0.05},
        {**BASE, "kind": "full", "clip": 0.05, "orig": False},
        {**BASE, "kind": "none", "clip": 0.05},
        {**BASE, **BF16, "gas": 3},
        {**BASE, "compute": "bfloat16", "gas": 3},
        {**BASE, "kind": "none", **BF16},
        {**BASE, "kind": "full", "wire": "bfloat16"},
        {**BASE, "kind": "full", "orig": False},
        {**BASE, "kind": "none", "gas": 3, "orig": False},
    ]


def wrapped(model, world, how):
    compute, wire = getattr(torch, how["compute"]), getattr(torch, how["wire"])
    if how["kind"] == "fsdp2":
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=wire)
        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    policy = MixedPrecision(param_dtype=compute, reduce_dtype=wire)
    warnings.simplefilter("ignore")
    return Fsdp1(
        model,
        sharding_strategy=STRATEGY[how["kind"]],
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or type(module).__name__ == "Block",
        mixed_precision=policy,
        use_orig_params=how["orig"],
        device_id=torch.device("cpu"),
    )


def parameters(model, how):
    """Full parameters in the model's order, as one vector of bit patterns."""
    if how["kind"] == "fsdp2":
        full = [p.detach().full_tensor() for p in model.parameters()]
    else:
        with Fsdp1.summon_full_params(model):
            full = [p.detach().clone() for p in model.parameters()]
            if not how["orig"]:
                named = {
                    n.replace("_fsdp_wrapped_module.", ""): p.detach().clone() for n, p in model.named_parameters()
                }
                full = [named[name] for name, _ in gpt(d=16, layers=2).named_parameters()]
    return torch.cat([p.flatten() for p in full]).view(torch.int32)


def run(rank, world, how):
    model = wrapped(gpt(d=16, layers=2), world, how)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, foreach=False)
    seen = []
    for step in range(how["steps"]):
        opt.zero_grad()
        for k in range(how["gas"]):
            last = k == how["gas"] - 1
            start = ((step * how["gas"] + k) * world + rank) * how["micro"]
            batch = read(range(start, start + how["micro"]))
            if how["kind"] == "fsdp2":
                model.set_requires_gradient_sync(last)
                z = model(torch.from_numpy(batch.tokens))
                (
                    F.cross_entropy(z.reshape(-1, 64).float(), torch.from_numpy(batch.labels).reshape(-1)) / how["gas"]
                ).backward()
            else:
                with torch.enable_grad() if last else model.no_sync():
                    z = model(torch.from_numpy(batch.tokens))
                    loss = F.cross_entropy(z.reshape(-1, 64).float(), torch.from_numpy(batch.labels).reshape(-1))
                    (loss / how["gas"]).backward()
        if how["clip"] and how["kind"] == "fsdp2":
            torch.nn.utils.clip_grad_norm_(model.parameters(), how["clip"])
        elif how["clip"]:
            model.clip_grad_norm_(how["clip"])
        opt.step()
        seen.append(parameters(model, how))
    return seen
