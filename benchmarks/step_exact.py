"""Exact sums: CPU time an element and error against fp64, beside fp32 and fp64 addition.

python benchmarks/step_exact.py [--numel 20000000] [--terms 6] [--rounds 3]
"""

import argparse
import statistics
import time

import torch

from pretrace.step.exact import ExactSum, vanished


def terms(args):
    made = []
    for i in range(args.terms):
        generator = torch.Generator().manual_seed(i)
        magnitude = 10 ** (torch.rand(args.numel, generator=generator) * 4 - 6)  # 1e-6 to 1e-2
        made.append(torch.randn(args.numel, generator=generator) * magnitude)
    return made


def exact(parts):
    total = ExactSum(torch.zeros(parts[0].numel(), dtype=torch.int64), 56, len(parts))
    for part in parts:
        total.add(part)
    return total.value(1.0, torch.float32)


def added(parts, dtype):
    total = parts[0].to(dtype, copy=True)
    for part in parts[1:]:
        total += part
    return total


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("numel", 20_000_000), ("terms", 6), ("rounds", 3)):
        parse.add_argument(f"--{name}", type=int, default=value)
    args = parse.parse_args()
    torch.set_num_threads(1)
    parts = terms(args)
    truth = added(parts, torch.float64)
    ways = {
        "fp32 add": lambda: added(parts, torch.float32),
        "fp64 add": lambda: added(parts, torch.float64),
        "exact": lambda: exact(parts),
    }
    times = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append((time.process_time() - start) / args.terms / args.numel * 1e9)
    lost = sum(vanished(part, 56) for part in parts)
    print(
        f"{args.numel:,} elements, {args.terms} terms, 1 thread, torch {torch.__version__}; {lost} elements count as zero"
    )
    for name, way in ways.items():
        off = float((way().double() - truth).norm() / truth.norm())
        spent = f"min {min(times[name]):.2f} median {statistics.median(times[name]):.2f}"
        print(f"  {name:9s} CPU ns an element and term: {spent}; relative error {off:.2e}")


if __name__ == "__main__":
    main()
