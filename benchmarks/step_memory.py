"""Memory and time of an exact ring over 64 virtual ranks under several budgets, each in a process of its own.

    python benchmarks/step_memory.py [--ranks 64] [--width 256 --layers 4 --vocab 8192 --seq 64 --micro 1]

What a step holds beside the model, its gradient and its moments: three flat buffers (the rank's gradient, the sum, the result)
and what is parked. `peak` is the highest resident memory of the process; `over plain` is that minus the peak of plain
accumulation, and `allowed` is the three buffers plus the budget.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time

import step_virtual_ranks as peer
import torch

from pretrace.step.visits import Budget


def one(args, way, parked, spill):
    torch.set_num_threads(1)
    read = peer.reader(args)
    update = peer.plain(args, read) if way == "plain" else peer.virtual(args, read, way, Budget(parked, spill))
    start = time.process_time()
    outcome = None
    for step in range(2):
        outcome = update(step)
    seconds = (time.process_time() - start) / 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    evaluations, held = (outcome.evaluations, outcome.peak_parked_bytes) if outcome else (args.ranks, 0)
    print(peak, seconds, evaluations, held)


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (
        ("width", 256),
        ("layers", 4),
        ("vocab", 8192),
        ("seq", 64),
        ("micro", 1),
        ("ranks", 64),
        ("threads", 1),
    ):
        parse.add_argument(f"--{name}", type=int, default=value)
    parse.add_argument("--wire", default="float32")
    parse.add_argument("--one", nargs=3)
    args = parse.parse_args()
    if args.one:
        way, parked, spill = args.one
        return one(args, way, None if parked == "none" else int(parked), None if spill == "none" else spill)
    size = 4 * sum(p.numel() for p in peer.model_of(args).parameters())
    gradient = size // 4 * (2 if args.wire == "bfloat16" else 4)
    sizes = f"{size // 4:,} parameters, {args.ranks} ranks, gradient on the wire {gradient / 2**20:.1f} MiB"
    print(f"{sizes}, torch {torch.__version__}")
    base = None
    with tempfile.TemporaryDirectory() as spill:
        ways = [("plain", None, None), ("tree", None, None), ("exact", None, None), ("ring", None, None)]
        ways += [
            ("ring", 8 * gradient, None),
            ("ring", 2 * gradient, None),
            ("ring", 0, None),
            ("ring", 2 * gradient, spill),
        ]
        for way, parked, folder in ways:
            settings = [way, "none" if parked is None else str(parked), folder or "none"]
            command = [sys.executable, __file__, *sys.argv[1:], "--one", *settings]
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3000).stdout.split()
            peak, seconds, evaluations, held = float(found[0]), float(found[1]), int(found[2]), int(found[3])
            base = (peak, seconds) if base is None else base
            budget = "-" if parked is None else f"{parked / 2**20:.0f} MiB"
            memory = f"peak {peak / 2**20:7.0f} MiB, over plain {(peak - base[0]) / 2**20:7.0f} MiB"
            work = f"{evaluations} evaluations, CPU {seconds:6.2f} s ({seconds / base[1]:.2f} x plain)"
            spilled = "spill" if folder else ""
            print(f"  {way:6s} budget {budget:>8s} {spilled:5s} {memory}, parked {held / 2**20:6.1f} MiB, {work}")
    return None


if __name__ == "__main__":
    main()
