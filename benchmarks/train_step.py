"""Training steps against HF Trainer's step and nanoGPT's, on the same model, batch, dtype and threads.

    python benchmarks/train_step.py [--peer nanogpt=FOLDER] [--threads 1 2] [--dtypes float32 bfloat16] [--compile] [--rounds 5]

Model: GPT-2's shape, 6 layers, d 384, 6 heads, vocabulary 50,304, batch 8 x 256 (2,048 tokens an update), AdamW, clip 1.0.
Every contender runs in a process of its own (peak memory is then its own); rounds are interleaved, one update of each in turn,
minimum and median are printed, ratios are of medians, of wall time and of CPU time a thread (which a busy machine blurs less).
The ceiling is the machine's matmul rate at the sizes that the model
uses, measured in the same run, in the same dtype and threads.

    ours      pretrace.step.execute under a plan (one rank), cross entropy by rows, full telemetry of a Record
    plain     the same without loss_rows
    hf        transformers' GPT2LMHeadModel as its Trainer steps it: training_step, clip, its default optimizer (fused AdamW)
    nanogpt   model.py of --peer as its train.py steps it: autocast, clip, fused=False AdamW
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

SHAPE = {"n_layer": 6, "n_head": 6, "n_embd": 384, "vocab": 50304, "block": 256, "batch": 8}
TOKENS = SHAPE["batch"] * SHAPE["block"]
LOGITS_BYTES = 207 << 20  # of one run of `loss_rows`: 1,078 positions in float32, all 2,048 in bfloat16


def batch():
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.integers(0, SHAPE["vocab"], (SHAPE["batch"], SHAPE["block"] + 1))


# ---------------------------------------------------------------- contenders: each returns a function that makes one update


def ours(dtype, compiled, rows=LOGITS_BYTES):
    from pretrace.batch import from_windows
    from pretrace.model.decoder import Decoder
    from pretrace.model.init import initialise
    from pretrace.model.presets import gpt2
    from pretrace.spec import build
    from pretrace.step.execute import execute
    from pretrace.step.plan import StepPlan
    from pretrace.step.state import begin
    from pretrace.train.memory import keep_freed_memory

    keep_freed_memory()  # as `pretrace train` does
    rows = rows and rows // (SHAPE["vocab"] * (4 if dtype == "float32" else 2))
    plan = build(StepPlan, {
        "world_size": 1, "grad_accum_steps": 1, "micro_batch": SHAPE["batch"], "accum_dtype": "float32",
        "reduce_dtype": "float32",
        "loss": {"denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32",
                 "z_loss": 0.0, "z_loss_on": "counted"},
        "reduction": {"collective": "all_reduce", "order": {"kind": "direct", "sum_dtype": "wire"},
                      "buckets": {"kind": "whole"}, "scaling": [], "scaling_first": []},
        "loss_scale": {"kind": "none"},
        "clip": {"max_norm": 1.0, "scope": "global", "norm": "tensors", "rule": "torch", "eps": 1e-6},
        "optimizer": {"kind": "adamw", "kernel": "torch_fused", "betas": [0.9, 0.95], "eps": 1e-8,
                      "eps_place": "corrected", "bias_correction": True, "decay_place": "before",
                      "groups": [{"params": ["*"], "ndim": "any", "weight_decay": 0.1, "lr_scale": 1.0}]},
        "schedule": {"kind": "constant", "peak": 6e-4, "warmup_steps": 0},
        "kernels": {"param_dtype": "float32", "compute_dtype": dtype, "mixed": "autocast", "attention": "any",
                    "threads": None, "compile": compiled, "deterministic": False, "loss_rows": rows},
    }, where="benchmark")  # fmt: skip
    spec = gpt2(vocab_size=SHAPE["vocab"], max_seq_len=SHAPE["block"], n_layers=6, d_model=384, n_heads=6)
    model = Decoder(spec)
    initialise(model, spec, 0)
    state, data = begin(plan, model), from_windows(batch())
    steps = iter(range(10**9))
    return lambda: execute(plan, state, lambda positions: data, step=next(steps))


def plain(dtype, compiled):
    return ours(dtype, compiled, rows=None)


def hf(dtype, compiled):
    import tempfile

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = GPT2Config(
        vocab_size=SHAPE["vocab"], n_positions=SHAPE["block"], n_layer=6, n_head=6, n_embd=384, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=SHAPE["batch"], bf16=dtype == "bfloat16", use_cpu=True,
        torch_compile=compiled, report_to=[], optim="adamw_torch_fused", learning_rate=6e-4, weight_decay=0.1,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments)
    trainer.create_optimizer_and_scheduler(10**6)
    ids = torch.from_numpy(batch()[:, :-1].copy())
    inputs = {"input_ids": ids, "labels": ids}
    model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped = model

    def update():
        trainer.training_step(model, dict(inputs), num_items_in_batch=torch.tensor(ids.numel()))
        trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trainer.lr_scheduler.step()
        model.zero_grad()

    return update


def nanogpt(dtype, compiled):
    import torch

    sys.path.insert(0, os.environ["NANOGPT"])
    from model import GPT, GPTConfig

    sizes = {"block_size": SHAPE["block"], "vocab_size": SHAPE["vocab"], "n_layer": 6, "n_head": 6, "n_embd": 384}
    config = GPTConfig(**sizes, dropout=0.0, bias=True)
    model = GPT(config)
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    run = torch.compile(model) if compiled else model
    windows = torch.from_numpy(batch())
    x, y = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def update():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            _, loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


CONTENDERS = {"ours": ours, "plain": plain, "hf": hf, "nanogpt": nanogpt}


# ---------------------------------------------------------------- one process a contender, asked for one update at a time


def serve(name, dtype, compiled, threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    update = CONTENDERS[name](dtype, compiled)
    for _ in range(2):
        update()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        update()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps([wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)


def ceiling(dtype, threads):
    """FLOP/s of the model's own products: [2048, 384] x [384, 50304] and [2048, 384] x [384, 1536], forward only."""
    code = f"""
import time, torch
torch.set_num_threads({threads})
total, spent = 0, 0.0
for n, k, m, times in ((2048, 384, 50304, 3), (2048, 384, 1536, 60), (384, 2048, 50304, 3)):
    a, b = torch.randn(n, k).to(torch.{dtype}), torch.randn(k, m).to(torch.{dtype})
    best = 1e9
    for _ in range(times):
        s = time.perf_counter(); a @ b; best = min(best, time.perf_counter() - s)
    total += 2 * n * k * m; spent += best
print(total / spent)
"""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    code = code.replace("perf_counter", "process_time") if threads == 1 else code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    return float(done.stdout)


def flops_per_token():
    from pretrace.model.presets import gpt2
    from pretrace.train.gauge import flops_per_token as of

    return of(
        gpt2(vocab_size=SHAPE["vocab"], max_seq_len=SHAPE["block"], n_layers=6, d_model=384, n_heads=6), SHAPE["block"]
    )


def compare(names, dtype, compiled, threads, rounds, peers):
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "NANOGPT": peers.get("nanogpt", "")}
    servers = {}
    for name in names:
        args = [sys.executable, __file__, "--serve", name, dtype, str(int(compiled)), str(threads)]
        servers[name] = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        while (line := servers[name].stdout.readline().strip()) != "ready":  # libraries print on their way
            if servers[name].poll() is not None:
                sys.exit(f"{name} did not start: {line}")
    times, cpus, memory = {name: [] for name in names}, {name: [] for name in names}, {}
    for _ in range(rounds):
        for name, server in servers.items():
            server.stdin.write("\n")
            server.stdin.flush()
            seconds, cpu, memory[name] = json.loads(server.stdout.readline())
            times[name].append(seconds)
            cpus[name].append(cpu / threads)
    for server in servers.values():
        server.stdin.close()
        server.wait(30)
    top = ceiling(dtype, threads)
    mine = {kind: statistics.median(held["ours"]) for kind, held in (("wall", times), ("cpu", cpus))}
    how = "compiled" if compiled else "eager"
    print(f"\n{dtype}, {how}, {threads} thread(s); ceiling {top / 1e9:.0f} GFLOP/s")
    words = ("min s", "median s", "tokens/s", "ours is", "CPU s", "of ceiling", "ours is", "peak MiB")
    print(" " * 10 + "".join(f"{word:>11}" for word in words))
    for name in names:
        cpu, middle = statistics.median(cpus[name]), statistics.median(times[name])
        row = (
            f"{min(times[name]):.3f}", f"{middle:.3f}", f"{TOKENS / middle:.0f}", f"{middle / mine['wall']:.2f}x", f"{cpu:.3f}",
            f"{TOKENS * flops_per_token() / min(cpus[name]) / top:.0%}", f"{cpu / mine['cpu']:.2f}x", f"{memory[name]:.0f}",
        )  # fmt: skip
        print(f"  {name:8}" + "".join(f"{cell:>11}" for cell in row), flush=True)


def main():
    if "--serve" in sys.argv:
        name, dtype, compiled, threads = sys.argv[2:6]
        return serve(name, dtype, bool(int(compiled)), int(threads))
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--compile", action="store_true", help="compiled against compiled (needs a C++ compiler)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[])
    given = parser.parse_args()
    peers = dict(p.split("=", 1) for p in given.peer)
    names = given.only or ["ours", "plain", "hf", *(["nanogpt"] if "nanogpt" in peers else [])]
    for threads in given.threads:
        for dtype in given.dtypes:
            compare(names, dtype, given.compile, threads, given.rounds, peers)


if __name__ == "__main__":
    main()
