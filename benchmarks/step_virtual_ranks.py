"""Virtual ranks against plain gradient accumulation: time and memory for the same tokens.

    python benchmarks/step_virtual_ranks.py [--width 256 --layers 4 --vocab 8192 --seq 256 --micro 2] [--ranks 8] [--rounds 5]

One process, interleaved: in every round each way makes one update of `ranks` micro-batches. The peer is a loop of plain torch
(cross entropy / n, backward, clip_grad_norm_, AdamW foreach), which does nothing that the plan does not do; it logs nothing.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pretrace.batch import from_windows
from pretrace.spec import build
from pretrace.step.execute import execute
from pretrace.step.plan import StepPlan
from pretrace.step.state import begin
from pretrace.step.visits import Budget

MUL = [{"where": "before_cast", "op": "mul", "by": "world_size"}]
ORDERS = {
    "direct": ({"kind": "direct", "sum_dtype": "wire"}, MUL),
    "tree": ({"kind": "tree", "sum_dtype": "wire"}, MUL),
    "exact": ({"kind": "exact", "exponent": 56}, []),
    "ring": ({"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}, MUL),
}


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok, self.pos = nn.Embedding(args.vocab, args.width), nn.Embedding(args.seq, args.width)
        self.blocks = nn.ModuleList(Block(args.width, max(1, args.width // 64)) for _ in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, args.vocab, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model_of(args):
    torch.manual_seed(0)
    return Gpt(args)


def reader(args):
    def read(positions):
        rng = np.random.default_rng(positions.start)
        return from_windows(rng.integers(0, args.vocab, (len(positions), args.seq + 1)))

    return read


def plan_of(args, name):
    order, scaling = ORDERS[name]
    return build(StepPlan, {
        "world_size": args.ranks, "grad_accum_steps": 1, "micro_batch": args.micro, "accum_dtype": "float32",
        "reduce_dtype": args.wire,
        "loss": {"denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32", "z_loss": 0,
                 "z_loss_on": "counted"},
        "reduction": {"collective": "all_reduce", "order": order, "scaling": scaling, "scaling_first": scaling,
                      "buckets": {"kind": "ddp", "cap_mb": 25, "first_cap_mb": 1, "restart": "anew"}},
        "loss_scale": {"kind": "none"},
        "clip": {"max_norm": 1.0, "scope": "global", "norm": "tensors", "rule": "torch", "eps": 1e-6},
        "optimizer": {"kind": "adamw", "kernel": "torch_foreach", "betas": [0.9, 0.95], "eps": 1e-8, "eps_place": "corrected",
                      "bias_correction": True, "decay_place": "before",
                      "groups": [{"params": ["*"], "ndim": "any", "weight_decay": 0.1, "lr_scale": 1.0}]},
        "schedule": {"kind": "constant", "peak": 1e-4, "warmup_steps": 0},
        "kernels": {"param_dtype": "float32", "compute_dtype": "float32", "mixed": "autocast", "attention": "any",
                    "threads": args.threads, "compile": False, "deterministic": False},
    }, where="benchmark")  # fmt: skip


def plain(args, read):
    model = model_of(args)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def update(step):
        opt.zero_grad()
        for k in range(args.ranks):
            start = (step * args.ranks + k) * args.micro
            batch = read(range(start, start + args.micro))
            z = model(torch.from_numpy(batch.tokens))
            loss = F.cross_entropy(z.reshape(-1, args.vocab), torch.from_numpy(batch.labels).reshape(-1))
            (loss / args.ranks).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return update


def virtual(args, read, name, budget):
    plan = plan_of(args, name)
    state = begin(plan, model_of(args))
    return lambda step: execute(plan, state, read, step=step, budget=budget)


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("width", 256), ("layers", 4), ("vocab", 8192), ("seq", 256), ("micro", 2), ("ranks", 8), ("rounds", 5),
                        ("threads", 1)):  # fmt: skip
        parse.add_argument(f"--{name}", type=int, default=value)
    parse.add_argument("--wire", default="float32")
    parse.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU seconds, for a machine that others use"
    )
    parse.add_argument("--ways", nargs="*", default=list(ORDERS))
    args = parse.parse_args()
    torch.set_num_threads(args.threads)
    read = reader(args)
    ways = {"plain": plain(args, read)} | {name: virtual(args, read, name, Budget()) for name in args.ways}
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    times = {name: [] for name in ways}
    for step in range(args.rounds + 2):
        for name, update in ways.items():
            start = clock()
            update(step)
            times[name].append(clock() - start)
    report(args, times)


def report(args, times):
    n = sum(p.numel() for p in model_of(args).parameters())
    tokens = f"{args.ranks} ranks x {args.micro} x {args.seq} tokens"
    print(f"{n:,} parameters, {tokens}, {args.threads} threads, torch {torch.__version__}, {args.clock} time")
    base = times["plain"][2:]  # the first two updates build buffers and DDP's second layout
    for name, found in times.items():
        found = found[2:]
        middle = statistics.median(a / b for a, b in zip(found, base))
        absolute = f"min {min(found) * 1e3:9.1f} ms  median {statistics.median(found) * 1e3:9.1f} ms"
        print(f"  {name:8s} {absolute}  ratio to plain: of minima {min(found) / min(base):.3f}, median {middle:.3f}")


if __name__ == "__main__":
    main()
