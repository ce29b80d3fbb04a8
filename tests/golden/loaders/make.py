"""Makes the golden cases of this folder by running the original programs, unmodified.

    python make.py --peer llmc=PATH --peer olmo=PATH --peer nanogpt=PATH --peer pythia=PATH

Each PATH is a checkout. llm.c's loader is compiled (gcc) into a driver that prints what every rank reads; OLMo's dataset and
iterator are imported; nanoGPT's train.py runs on the CPU with a tiny model, its calls of torch.randint are written down;
Pythia's batch_viewer.py runs on a pre-shuffled pair.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LLMC = """
#include "llmc/dataloader.h"
int main(int argc, char** argv) {  // pattern B T rank ranks shuffle batches
    DataLoader l;
    int batches = atoi(argv[7]);
    dataloader_init(&l, argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    for (int b = 0; b < batches; b++) {
        dataloader_next_batch(&l);
        for (size_t i = 0; i < l.B * l.T; i++) { printf("%d ", l.inputs[i]); }
        for (size_t i = 0; i < l.B * l.T; i++) { printf("%d ", l.targets[i]); }
    }
    return 0;
}
"""
OLMO = """
import sys, types, json
import numpy as np
sys.path.insert(0, sys.argv[1])
import importlib.util
# The package's __init__ imports the whole trainer: the two modules that decide the order are loaded beside stubs.
def stub(name, **members):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    vars(module).update(members)
    sys.modules[name] = module
stub("olmo")
stub("olmo.data")
stub("olmo.aliases", PathOrStr=str)
stub("olmo.config", InstanceFilterConfig=None)
stub("olmo.exceptions", OLMoEnvironmentError=Exception)
stub("olmo.torch_util", barrier=None, get_fs_local_rank=None, get_global_rank=None, get_world_size=None)
util = types.ModuleType("olmo.util")
def roundrobin(*its):
    its = [iter(i) for i in its]
    while its:
        for i in list(its):
            try: yield next(i)
            except StopIteration: its.remove(i)
def threaded_generator(g, maxsize=16, thread_name=None): return g
def get_bytes_range(path, start, n):
    with open(path, "rb") as f: f.seek(start); return f.read(n)
util.roundrobin, util.threaded_generator = roundrobin, threaded_generator
util._get_s3_client = lambda name: None
util.get_bytes_range, util.file_size = get_bytes_range, lambda p: __import__("os").path.getsize(p)
sys.modules["olmo.util"] = util
from olmo.data.memmap_dataset import MemMapDataset
from olmo.data.iterable_dataset import IterableDataset
a = json.loads(sys.argv[2])
data = MemMapDataset(*a["files"], chunk_size=a["seq_len"], memmap_dtype=np.uint16)
out = []
for rank in range(a["world_size"]):
    rows = []
    for epoch in range(a["epochs"]):
        it = IterableDataset(data, a["global_batch"], seed=a["seed"], epoch=epoch, drop_last=a["drop_last"],
                             world_size=a["world_size"], rank=rank, fs_local_rank=0)
        rows.append([[int(t) for t in x["input_ids"]] for x in it])
    out.append(rows)
print(json.dumps({"windows": len(data), "rows": out}))
"""
NANOGPT = """
import json, os, runpy, sys
import torch
real, seen, state = torch.randint, [], {}
def randint(high, size, **more):
    if not state:
        state["before"] = torch.get_rng_state()
    found = real(high, size, **more)
    seen.append([int(high), found.tolist()])
    return found
torch.randint = randint
where = sys.argv[1]
os.chdir(where)
sys.argv = ["train.py", *sys.argv[2:]]
try:
    runpy.run_path("train.py", run_name="__main__")
finally:
    print("SEEN" + json.dumps({"seen": seen, "torch": torch.__version__}))
"""


def random_ids(n, seed, top=50257):
    return np.random.default_rng(seed).integers(0, top, n).astype("<u2")


def save(name, about, inputs, arrays):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for file, data in inputs.items():
        (folder / file).write_bytes(data)
    np.savez_compressed(folder / "expected.npz", **arrays)
    (folder / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    print(name, {k: v.shape for k, v in arrays.items()})


def commit(path):
    out = subprocess.run(["git", "-C", path, "log", "-1", "--format=%h %cs"], capture_output=True, text=True)
    return out.stdout.strip()


def llmc(path, work):
    (work / "driver.c").write_text(LLMC)
    subprocess.run(
        ["gcc", "-O1", "-w", "-I", path, str(work / "driver.c"), "-o", str(work / "driver"), "-lm"], check=True
    )
    inputs = {}
    for shard, n in enumerate((60, 97, 33)):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, n
        inputs[f"shard_{shard}.bin"] = header.tobytes() + random_ids(n, shard).tobytes()
        (work / f"shard_{shard}.bin").write_bytes(inputs[f"shard_{shard}.bin"])
    arrays, batch, seq_len, ranks, n = {}, 2, 4, 2, 31
    for shuffle in (0, 1):
        for rank in range(ranks):
            words = [
                str(work / "driver"),
                f"{work}/shard_*.bin",
                str(batch),
                str(seq_len),
                str(rank),
                str(ranks),
                str(shuffle),
            ]
            out = subprocess.run([*words, str(n)], check=True, capture_output=True, text=True).stdout
            # [batches, inputs | targets, B, T]
            arrays[f"shuffle{shuffle}_rank{rank}"] = np.array(out.split(), np.int32).reshape(n, 2, batch, seq_len)
    about = {"program": "karpathy/llm.c llmc/dataloader.h", "commit": commit(path), "micro_batch": batch, "seq_len": seq_len,
             "world_size": ranks, "shuffle_seed": 42}  # fmt: skip
    save("llmc", about, inputs, arrays)


def olmo(path, work):
    inputs = {f"part-{i}.npy": random_ids(n, 10 + i).tobytes() for i, n in enumerate((83, 41, 7, 64))}
    for name, data in inputs.items():
        (work / name).write_bytes(data)
    base = {
        "files": [str(work / name) for name in inputs],
        "seq_len": 8,
        "epochs": 2,
        "world_size": 3,
        "global_batch": 6,
        "seed": 6198,
    }
    arrays = {}
    for drop_last in (True, False):
        told = json.dumps({**base, "drop_last": drop_last})
        out = subprocess.run(
            [sys.executable, "-c", OLMO, path, told], check=True, capture_output=True, text=True
        ).stdout
        arrays[f"drop_last_{drop_last}"] = np.array(json.loads(out)["rows"], np.int32)  # [ranks, epochs, samples, S]
    about = {"program": "allenai/OLMo olmo/data/memmap_dataset.py, iterable_dataset.py", "commit": commit(path), **base}
    about["files"] = list(inputs)
    save("olmo", about, inputs, arrays)


def nanogpt(path, work):
    data = Path(path) / "data" / "pretrace_golden"
    data.mkdir(exist_ok=True)
    inputs = {"train.bin": random_ids(700, 1, 60).tobytes(), "val.bin": random_ids(90, 2, 60).tobytes()}
    for name, raw in inputs.items():
        (data / name).write_bytes(raw)
    settings = {"dataset": "pretrace_golden", "device": "cpu", "compile": False, "n_layer": 1, "n_head": 1,
                "n_embd": 8, "block_size": 8, "batch_size": 3, "gradient_accumulation_steps": 2, "max_iters": 7,
                "eval_interval": 3, "eval_iters": 2, "dropout": 0.0, "log_interval": 1000, "dtype": "float32",
                "wandb_log": False, "out_dir": str(work / "out")}  # fmt: skip
    words = [f"--{k}={v}" for k, v in settings.items()]
    out = subprocess.run([sys.executable, "-c", NANOGPT, path, *words], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    line = next((x for x in out.stdout.splitlines() if x.startswith("SEEN")), None)
    if line is None:
        raise SystemExit(out.stdout + out.stderr)
    found = json.loads(line.removeprefix("SEEN"))
    settings["out_dir"] = ""
    train, evaluated = [], [i for i, (high, _) in enumerate(found["seen"]) if high == 90 - 8]
    for i, (_, places) in enumerate(found["seen"]):
        # An evaluation draws eval_iters batches of train, then as many of val.
        if not any(i in (e, e - settings["eval_iters"]) for e in evaluated):
            train.append(places)
    about = {
        "program": "karpathy/nanoGPT train.py",
        "commit": commit(path),
        "torch": found["torch"],
        "settings": settings,
    }
    about["draws_before"] = draws_before(train[0], 700 - 8)
    save("nanogpt", about, inputs, {"train": np.array(train, np.int64)})


def draws_before(places, high):
    """32-bit draws that the model's initialisation took: where the first batch stands in the stream of the seed."""
    key = np.random.RandomState(1337).get_state()[1]
    generator = np.random.MT19937()
    generator.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": 624}}
    raw = generator.random_raw(3_000_000).astype(np.int64) % high
    return int(np.flatnonzero(np.all([raw[j : j - len(places) or None] == p for j, p in enumerate(places)], axis=0))[0])


def preshuffled(path, n=1030, width=2049):
    """Entry i holds i, i + 1, ... modulo 50,000: the viewer's width is fixed, so the pair is made again instead of kept."""
    sys.path.insert(0, str(HERE.parents[2] / "src"))
    from pretrace.data.tokenfile import write_pair

    write_pair(path, [(i + np.arange(width)) % 50_000 for i in range(n)], "uint16")


def pythia(path, work):
    preshuffled(work / "pre")
    words = [
        sys.executable,
        "batch_viewer.py",
        "--start_iteration",
        "0",
        "--end_iteration",
        "0",
        "--save_path",
        str(work),
    ]
    subprocess.run([*words, str(work / "pre")], cwd=Path(path) / "utils", check=True, capture_output=True)
    made = np.load(work / "indicies.npy")
    about = {"program": "EleutherAI/pythia utils/batch_viewer.py --start_iteration 0 --end_iteration 0", "commit": commit(path),
             "shape": made.shape, "sha256_int64": hashlib.sha256(made.astype("<i8").tobytes()).hexdigest()}  # fmt: skip
    save("preshuffled", about, {}, {"first_tokens": made[:, 0].astype(np.int32)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="append", default=[])
    for peer in parser.parse_args().peer:
        name, path = peer.split("=", 1)
        with tempfile.TemporaryDirectory() as work:
            globals()[name](str(Path(path).resolve()), Path(work))


if __name__ == "__main__":
    main()
