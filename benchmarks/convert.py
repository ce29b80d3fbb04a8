"""Converting a checkpoint: same layout beside `cp`, moved layouts, and beside transformers' load and save, in one run.

python benchmarks/convert.py [--gigabytes 0.9] [--runs 3] [--threads 2]

Synthetic bfloat16 models are written once. Then, interleaved and each in a process of its own:
  cp        `cp` of the source's files and `sync` of the result: the floor.
  ours      pretrace convert without the logit proof; its stages (write with fsync, read back, audit) are listed apart.
  theirs    transformers from_pretrained and save_pretrained of the same pair (where transformers knows both sides).
Printed: minimum and median wall seconds, the ratio of ours to cp (writing, and everything), peak memory beside the largest
fused tensor. Files are in the page cache after the first run; bars: writing within 1.5x of cp for the same layout, 2.5x moved.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKE = """
import sys
import numpy as np
from pathlib import Path
from pretrace.checkpoint import ArraysView, layout_of, plain_options, write_layout
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.model.spec import n_params, tensor_shapes
folder, family, size = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
make = {"gpt2": gpt2, "gpt_neox": gpt_neox, "llama": llama}[family]
heads = 16
more = {"n_kv_heads": 4, "d_ff": 2816} if family == "llama" else {}
layers = 1
while True:
    spec = make(vocab_size=50304, max_seq_len=1024, n_layers=layers, d_model=1024, n_heads=heads, **more)
    if 2 * n_params(spec) >= size * 1e9:
        break
    layers += 1
rng = np.random.default_rng(0)
def values(name, shape):
    if "norm" in name:
        return np.full(shape, 0x3F80, np.uint16) + rng.integers(0, 64, shape).astype(np.uint16)
    if name.endswith("bias"):
        return rng.integers(0x3C00, 0x3D00, shape).astype(np.uint16)
    block = rng.integers(0x3C00, 0x3D00, shape).astype(np.uint16)  # 0.008 to 0.03, both signs
    block |= rng.integers(0, 2, shape, dtype=np.uint16) << 15
    return block
arrays = {n: values(n, s) for n, s in tensor_shapes(spec).items()}
view = ArraysView(arrays, dtypes=dict.fromkeys(arrays, "bfloat16"))
folder.mkdir()
write_layout(layout_of("hf", view, spec, plain_options(view, shard_bytes=200_000_000)), folder)
"""
OURS = """
import json, resource, sys
from pathlib import Path
from pretrace.checkpoint.give_back import one_arena
from pretrace.convert.request import Request
from pretrace.convert.run import Settings, convert
source, target, to, threads, changes = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
one_arena()  # as the command line does
neutral = dict(dtype="keep", shard_bytes=None, tensor_parallel=1, data_parallel=1, linear1=True, ocdbt=True, scan_axis=1,
               fused_qkv=True, vocab_rows=None, state="keep", adam=None)
made = convert(source, target, Request(to=to, **neutral | changes), Settings(threads, "", False, False, None))
widest = max(made.plan.layout.sources.info(n).size_bytes for n in made.plan.layout.sources.names())
print(json.dumps({"stages": made.stages, "seconds": made.seconds, "widest": widest,
                  "held": made.plan.work.held_bytes, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""
THEIRS = """
import json, resource, sys, time, torch
from transformers import AutoModelForCausalLM
start = time.perf_counter()
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).save_pretrained(sys.argv[2])
import os
os.sync()
print(json.dumps({"seconds": time.perf_counter() - start, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""
# What is converted: the family, the target, its options, whether bytes move, whether transformers can do the same.
PAIRS = {
    "hf -> hf, one file": ("gpt_neox", "hf", {}, False, True),
    "hf gpt_neox -> neox, tp 2": ("gpt_neox", "neox", {"tensor_parallel": 2}, True, False),
    "hf gpt2 -> nanogpt (transposes)": ("gpt2", "nanogpt", {}, True, False),
    "hf llama -> maxtext, raw chunks": ("llama", "maxtext", {"ocdbt": False}, True, False),
    "hf llama -> maxtext, OCDBT": ("llama", "maxtext", {}, True, False),
}  # fmt: skip


def child(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def copy(source, target):
    start = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for file in target.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return time.perf_counter() - start


def measure(name, sources, place, runs, threads):
    family, to, changes, moved, known = PAIRS[name]
    source = sources[family]
    seen = {"cp": [], "ours": [], "theirs": []}
    for _ in range(runs):
        for kind in seen:
            target = place / "out"
            if kind == "cp":
                seen[kind].append({"seconds": copy(source, target)})
            elif kind == "ours":
                seen[kind].append(child(OURS, source, target, to, threads, json.dumps(changes)))
            elif known:
                seen[kind].append(child(THEIRS, source, target))
            shutil.rmtree(target, ignore_errors=True)
    report(name, seen, moved)


def report(name, seen, moved):
    floor = [r["seconds"] for r in seen["cp"]]
    write = [r["stages"]["write"] + r["stages"]["publish"] for r in seen["ours"]]
    print(f"\n{name}")
    print(f"  cp + fsync   {min(floor):.2f} s (median {statistics.median(floor):.2f})")
    bar = 2.5 if moved else 1.5
    ratio = f"{min(write) / min(floor):.2f} x cp, bar {bar}"
    print(f"  ours: write  {min(write):.2f} s (median {statistics.median(write):.2f}): {ratio}")
    for stage in ("plan", "read back", "audit", "describe"):
        spent = [r["stages"][stage] for r in seen["ours"]]
        print(f"        {stage:<10} {min(spent):.2f} s (median {statistics.median(spent):.2f})")
    whole = [r["seconds"] for r in seen["ours"]]
    print(f"        whole      {min(whole):.2f} s: {min(whole) / min(floor):.2f} x cp")
    peak, widest, held = (max(r[key] for r in seen["ours"]) / 2**20 for key in ("peak", "widest", "held"))
    print(f"        peak {peak:.0f} MiB; largest tensor of the target {widest:.0f} MiB, held at once {held:.0f} MiB")
    if seen["theirs"]:
        theirs = [r["seconds"] for r in seen["theirs"]]
        peak = max(r["peak"] for r in seen["theirs"]) / 2**20
        print(
            f"  transformers {min(theirs):.2f} s (median {statistics.median(theirs):.2f}), peak {peak:.0f} MiB, no proof"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.9)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--place", default=None, help="a folder on the disk to measure")
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="pretrace-convert-", dir=chosen.place))
    try:
        names = [name for name in PAIRS if chosen.only in name]
        sources = {family: place / family for family in {PAIRS[name][0] for name in names}}
        for family, folder in sources.items():
            child(MAKE, folder, family, chosen.gigabytes)
        size = sum(f.stat().st_size for f in next(iter(sources.values())).rglob("*")) / 1e9
        print(f"{size:.2f} GB of bfloat16 in shards, {chosen.threads} threads, {chosen.runs} runs interleaved")
        for name in names:
            measure(name, sources, place, chosen.runs, chosen.threads)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
