"""Speed and memory of `pretrace compare` and `pretrace audit`, side by side with what else there is.

    python benchmarks/compare_speed.py --gb 0.9 --runs 3
    python benchmarks/compare_speed.py --gb 0.9 --cold
    python benchmarks/compare_speed.py --gb 4 --no-naive
    python benchmarks/compare_speed.py --sparse-gb 20
    python benchmarks/compare_speed.py --scaling 0.1 0.3 1 2 4

Whole processes, two threads, warm cache unless `--cold`. GB/s counts the bytes of both checkpoints for a comparison, of one
for an audit. The peers run where they are installed: `--peers PYTHON` names the interpreter of an environment with weightscope,
weightlens and diffai-python (and torch). Needs about 2 x GB of disk in `--folder`, which is removed at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from side_by_side import Runs, evict, interleave, table

NAIVE = """
import glob, sys, torch
from safetensors.torch import load_file
def load(d):
    sd = {}
    for f in sorted(glob.glob(d + "/*.safetensors")): sd.update(load_file(f))
    return sd
a, b = load(sys.argv[1]), load(sys.argv[2])
x, y = (torch.cat([s[k].reshape(-1).to(torch.float32) for k in sorted(a)]) for s in (a, b))
print("cos", torch.nn.functional.cosine_similarity(x, y, dim=0).item(), "l2", (x - y).norm().item())
"""
FLOOR = (
    "import sys; sys.path.insert(0, {here!r}); from side_by_side import read_all; [read_all(p) for p in sys.argv[1:]]"
)
DIFFAI = "import diffai, sys; r = diffai.diff_paths(sys.argv[1], sys.argv[2]); print(len(r), 'differences')"
HERE = str(Path(__file__).parent)
MAIN = "from pretrace.cli.main import main; main()"


def contestants(a, b, size, options):
    both, one, py = 2 * size / 1e9, size / 1e9, sys.executable
    found = [
        Runs("read both files (floor)", [py, "-c", FLOOR.format(here=HERE), str(a), str(b)], both),
        Runs("pretrace compare", [py, "-c", MAIN, "compare", str(a), str(b), "--threads", str(options.threads)], both),
        Runs("pretrace audit", [py, "-c", MAIN, "audit", str(b), "--threads", str(options.threads)], one),
    ]
    if options.naive:
        found.append(Runs("torch, the usual lines", [options.peers or py, "-c", NAIVE, str(a), str(b)], both))
    if options.peers:
        bin_ = Path(options.peers).parent
        shard = next(iter(sorted(Path(a).glob("*.safetensors")))).name
        found += [
            Runs("weightscope diff", [str(bin_ / "weightscope"), "diff", str(a), str(b)], both),
            Runs("weightlens (audit)", [str(bin_ / "lens"), "analyze", str(b / "model.safetensors.index.json")], one),
            Runs("diffai (one shard of 5)", [options.peers, "-c", DIFFAI, str(a / shard), str(b / shard)], both / 5),
        ]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=0.9)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--sparse-gb", type=float, default=0)
    parser.add_argument("--scaling", type=float, nargs="*", default=[])
    parser.add_argument("--peers", default="")
    parser.add_argument("--naive", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--prefix", default="", help="words before every command (chrt -r 1, on a busy machine)")
    options = parser.parse_args()
    env = {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for gb in options.scaling or [options.sparse_gb or options.gb]:
            place = folder / str(gb)
            kind = "sparse" if options.sparse_gb else "plain"
            made = subprocess.run(
                [sys.executable, f"{HERE}/checkpoint_pairs.py", place, str(gb), kind], capture_output=True, check=True
            )
            a, b, size = place / "a", place / "b", int(made.stdout)
            found = contestants(a, b, size, options)
            if options.scaling or options.sparse_gb:
                found = found[:3]
            before = partial(evict, place) if options.cold else None
            interleave(found, options.runs, env, before, options.prefix)
            state = "cold" if options.cold else "warm"
            table(
                found,
                f"2 x {size / 1e9:.2f} GB bf16{' (sparse)' if options.sparse_gb else ''}, {state}, {options.runs} runs",
            )
            shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        assert not os.path.exists(folder)


if __name__ == "__main__":
    main()
