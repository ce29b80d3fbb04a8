"""Reading all tensors of one checkpoint, every format beside its own library, in one run.

python benchmarks/checkpoint_read.py [--gigabytes 0.5] [--runs 3]

The same float32 weights are written as safetensors, torch zip, torch DCP and zarr (uncompressed),
then each reader reads every byte in a process of its own, interleaved. Printed: minimum and median wall seconds, peak
memory, GB/s, and the ceiling (plain reads into one buffer). Files are in the page cache after the first run.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CEILING = """
for path in sorted(folder.rglob("*")):
    if path.is_file():
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
"""
OURS = """
from pretrace.checkpoint import blocks, open_state
with open_state(folder) as view:
    for name in view.names():
        for block in blocks(view, name):
            pass
"""
PEERS = {
    "safetensors": """
from safetensors import safe_open
with safe_open(folder / "model.safetensors", "numpy") as file:
    for name in file.keys():
        file.get_tensor(name).max()
""",
    "zip": """
import torch
for tensor in torch.load(folder / "w.pt", weights_only=True).values():
    pass
""",
    "dcp": """
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(folder, folder.parent / "out.pt")
""",
    "zarr": """
import tensorstore as ts
for path in sorted(folder.iterdir()):
    ts.open({"driver": "zarr", "kvstore": f"file://{path}/"}, open=True).result().read().result()
""",
}
FRAME = """
import sys, time
from pathlib import Path
folder, buffer = Path(sys.argv[1]), bytearray(4 << 20)
start = time.perf_counter()
{body}
seconds = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(seconds, int(peak) / 1024)
"""


def write(root, gigabytes):
    import numpy as np
    import tensorstore as ts
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    rows = int(gigabytes * 1e9 / 4 / 4096 / 8)
    weights = {f"blocks.{i}.mlp.up.weight": torch.randn(rows, 4096) for i in range(8)}
    for form in PEERS:
        (root / form).mkdir()
    save_file(weights, root / "safetensors" / "model.safetensors")
    torch.save(weights, root / "zip" / "w.pt")
    dcp.save(weights, checkpoint_id=root / "dcp")
    for name, tensor in weights.items():
        spec = {"driver": "zarr", "kvstore": f"file://{root}/zarr/{name}/",
                "metadata": {"shape": list(tensor.shape), "chunks": [512, 4096], "dtype": "<f4", "compressor": None}}  # fmt: skip
        ts.open(spec, create=True).result().write(np.asarray(tensor)).result()


def measure(body, folder):
    done = subprocess.run(
        [sys.executable, "-c", FRAME.format(body=body), folder], capture_output=True, text=True, check=True
    )
    seconds, megabytes = done.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--gigabytes", type=float, default=0.5)
    options.add_argument("--runs", type=int, default=3)
    args = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pretrace-bench-"))
    try:
        write(root, args.gigabytes)
        for form, peer in PEERS.items():
            folder = str(root / form)
            size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()) / 1e9
            rounds = [{who: measure(body, folder) for who, body in (("ceiling", CEILING), ("pretrace", OURS), ("peer", peer))}
                      for _ in range(args.runs)]  # fmt: skip
            for who in ("ceiling", "pretrace", "peer"):
                seconds = [r[who][0] for r in rounds]
                peak = max(r[who][1] for r in rounds)
                print(f"{form:12s} {who:9s} min {min(seconds):6.3f} s  median {statistics.median(seconds):6.3f} s  "
                      f"{size / min(seconds):6.2f} GB/s  peak {peak:7.0f} MiB")  # fmt: skip
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
