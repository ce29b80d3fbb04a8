"""The reduction rule of GPT-NeoX v1.0's pipeline engine, written with raw collectives: unscaled fp16 sums, scaled afterwards.

fp16 parameters with fp32 masters, fp16 accumulation, a static loss scale, buckets in the order of the parameters that close
once they hold more than `cap` elements, `all_reduce` of the sum, then times 1 / world_size; unscaling and clipping in one go.
"""

import copy

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tiny import gpt, read

HOW = {"steps": 6, "gas": 2, "micro": 1, "cap": 1500, "scale": 4096.0, "clip": 0.05}


def default(world):
    return [HOW] if world == 3 else []


def buckets(grads, cap):
    held, size = [], 0
    for grad in grads:
        held.append(grad)
        size += grad.numel()
        if size > cap:
            yield held
            held, size = [], 0
    if held:
        yield held


def run(rank, world, how):
    master = gpt(d=16, layers=1)
    model = copy.deepcopy(master).half()
    opt = torch.optim.AdamW(master.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, foreach=False)
    seen = []
    for step in range(how["steps"]):
        with torch.no_grad():
            for half, full in zip(model.parameters(), master.parameters()):
                half.copy_(full)
                half.grad = None
        for k in range(how["gas"]):
            start = ((step * how["gas"] + k) * world + rank) * how["micro"]
            batch = read(range(start, start + how["micro"]))
            z = model(torch.from_numpy(batch.tokens))
            loss = F.cross_entropy(z.reshape(-1, 64).float(), torch.from_numpy(batch.labels).reshape(-1))
            (loss * how["scale"] / how["gas"]).backward()
        grads = [p.grad for p in model.parameters()]
        for bucket in buckets(grads, how["cap"]):
            flat = torch.cat([g.reshape(-1) for g in bucket])
            dist.all_reduce(flat)
            flat.mul_(1.0 / world)
            for grad, part in zip(bucket, flat.split([g.numel() for g in bucket])):
                grad.copy_(part.view_as(grad))
        wide = [g.float() for g in grads]
        norm = torch.cat([g.reshape(-1) for g in wide]).norm().item()
        over = (norm / how["scale"] + 1e-6) / how["clip"]
        for p, g in zip(master.parameters(), wide):
            p.grad = g.mul_(1.0 / (over * how["scale"] if over > 1 else how["scale"]))
        opt.step()
        seen.append(torch.cat([p.detach().flatten() for p in master.parameters()]).view(torch.int32))
    return seen
