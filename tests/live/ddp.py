"""Plain torch DDP as a user writes it: nothing of pretrace's executor is in here."""

import itertools

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tiny import gpt, read

BASE = {"wire": "float32", "gas": 1, "cap_mb": 0.004, "view": False, "micro": 2, "clip": 1.0, "steps": 20}


def default(world):
    """What the default suite runs; `full` has the whole grid."""
    if world == 8:  # eight processes on two cores: the shortest that holds fp32, bf16 and both gas
        return [{**BASE, "gas": 4, "micro": 1}, {**BASE, "wire": "bfloat16", "micro": 1}]
    return [{**BASE, "gas": 4}, {**BASE, "wire": "bfloat16"}, {**BASE, "view": True, "steps": 6}]


def full(world):
    """fp32 and bf16 wire, gas 1 and 4, dropped and viewed gradients, clipped or not, one and several buckets."""
    grid = itertools.product(("float32", "bfloat16"), (1, 4), (False, True), (None, 1.0), (0.004, 25.0))
    hows = [
        {**BASE, "wire": wire, "gas": gas, "view": view, "clip": clip, "cap_mb": cap}
        for wire, gas, view, clip, cap in grid
        if not (wire == "bfloat16" and view)
    ]
    return hows if world < 8 else hows[::3]


def bf16_hook(world, bucket):
    """What torch's own bf16 hook does (it refuses gloo): cast, divide in bf16, all-reduce, copy back."""
    buffer = bucket.buffer()
    small = buffer.to(torch.bfloat16).div_(world)
    future = dist.all_reduce(small, async_op=True).get_future()

    def back(future):
        value = future.value()
        buffer.copy_(value[0] if isinstance(value, list) else value)
        return buffer

    return future.then(back)


def run(rank, world, how):
    """The parameters after each step, as one vector of bit patterns."""
    model = gpt(d=16, layers=1)
    ddp = DistributedDataParallel(model, bucket_cap_mb=how["cap_mb"], gradient_as_bucket_view=how["view"])
    if how["wire"] == "bfloat16":
        ddp.register_comm_hook(world, bf16_hook)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    seen = []
    for step in range(how["steps"]):
        opt.zero_grad(set_to_none=not how["view"])
        for k in range(how["gas"]):
            start = ((step * how["gas"] + k) * world + rank) * how["micro"]
            batch = read(range(start, start + how["micro"]))
            ddp.require_backward_grad_sync = k == how["gas"] - 1
            z = ddp(torch.from_numpy(batch.tokens))
            loss = F.cross_entropy(z.reshape(-1, z.shape[-1]), torch.from_numpy(batch.labels).reshape(-1))
            (loss / how["gas"]).backward()
        if how["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), how["clip"])
        opt.step()
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32))
    return seen
