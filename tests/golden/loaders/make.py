"""Makes the golden cases of this folder by running the original programs, unmodified.

    python make.py --peer llmc=PATH --peer olmo=PATH --peer nanogpt=PATH --peer pythia=PATH --peer megatron=PATH --peer neox=PATH

Each PATH is a checkout. llm.c's loader is compiled (gcc) into a driver that prints what every rank reads; OLMo's dataset and
iterator are imported; nanoGPT's train.py runs on the CPU with a tiny model, its calls of torch.randint are written down;
Pythia's batch_viewer.py runs on a pre-shuffled pair.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import sysconfig
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
MEGATRON = """
import sys, types, json
import numpy as np
def stub(name, **members):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    vars(module).update(members)
    sys.modules[name] = module
# megatron.core's __init__ imports the trainer; its data sets need of it a logger, a base class and numpy.load.
stub("megatron")
stub("megatron.core")
stub("megatron.core.datasets")
stub("megatron.core.utils", log_single_rank=lambda *a, **k: None)
stub("megatron.core.safe_globals", safe_numpy_load=np.load)
stub("megatron.core.tokenizers", MegatronTokenizerBase=object)
sys.path.insert(0, sys.argv[3])
import helpers_cpp
sys.modules["megatron.core.datasets.helpers_cpp"] = helpers_cpp
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
class Tokenizer:
    eod, pad, vocab_size, unique_identifiers = 0, -1, 512, {}
told, out = json.loads(sys.argv[2]), {}
for name, case in told["cases"].items():
    config = GPTDatasetConfig(random_seed=told["seed"], sequence_length=told["seq_len"], split="1,0,0", tokenizer=Tokenizer(),
                              blend=([f"{sys.argv[3]}/{c}" for c in case["corpora"]], case["weights"]), path_to_cache=None,
                              reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
                              create_attention_mask=False, mid_level_dataset_surplus=0.005, num_dataset_builder_threads=1)
    rest = None if case["size"] is None else 0
    made = BlendedMegatronDatasetBuilder(GPTDataset, [case["size"], rest, rest], lambda: True, config).build()[0]
    rows = [made[i] for i in range(len(made))]
    out[name] = [[*map(int, row["tokens"]), int(row["labels"][-1])] for row in rows]
print("MADE" + json.dumps(out))
"""
NEOX = """
import sys, types, json
import numpy as np, torch
stub = types.ModuleType("megatron")
stub.__path__, stub.print_rank_0 = [sys.argv[1] + "/megatron"], lambda *a, **k: None
data = types.ModuleType("megatron.data")
data.__path__ = [sys.argv[1] + "/megatron/data"]
stub.mpu = types.ModuleType("megatron.mpu")
stub.mpu.get_io_parallel_group = lambda: None
sys.modules.update({"megatron": stub, "megatron.mpu": stub.mpu, "megatron.data": data})
torch.cuda.LongTensor = torch.LongTensor
torch.distributed.get_rank = lambda *a: 0
torch.distributed.all_reduce = lambda *a, **k: None
torch.distributed.get_world_size = lambda **k: 1
import importlib.machinery, importlib.util, os
if os.path.exists(sys.argv[3] + "/helpers.so"):
    found = importlib.util.spec_from_file_location("helpers", sys.argv[3] + "/helpers.so")
    data.helpers = sys.modules["megatron.data.helpers"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(data.helpers)
from megatron.data.blendable_dataset import BlendableDataset
from megatron.data.gpt2_dataset import GPT2Dataset
from megatron.data.indexed_dataset import MMapIndexedDataset
told, out, work = json.loads(sys.argv[2]), {}, sys.argv[3]
for name, case in told["cases"].items():
    if "weights" in case:
        parts = []
        for k, (corpus, n) in enumerate(zip(case["corpora"], case["requests"])):
            pair = MMapIndexedDataset(f"{work}/{corpus}", skip_warmup=True)
            parts.append(GPT2Dataset(f"{name}_{k}", f"{work}/{name}", np.arange(len(pair), dtype=np.int32), pair, n, None,
                                     told["seq_len"], told["seed"]))
        made = BlendableDataset(parts, case["weights"])
        out[name] = [made[i]["text"].tolist() for i in range(len(made))]
        continue
    pair = MMapIndexedDataset(f"{work}/{case['corpus']}", skip_warmup=True)
    documents = np.arange(*case["documents"], dtype=np.int32)
    made = GPT2Dataset(name, f"{work}/{name}", documents, pair, case["num_samples"], None, told["seq_len"], case["seed"],
                       pack_impl="pack_until_overflow", allow_chopped=case["allow_chopped"])
    out[name] = [made[i]["text"].tolist() for i in range(len(made))]
print("MADE" + json.dumps(out))
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


def corpora(work):
    """Three pairs of documents of 4 to 30 tokens that end with id 0; the tests make them again."""
    sys.path.insert(0, str(HERE.parents[2] / "src"))
    from pretrace.data.tokenfile import write_pair

    for k, n in enumerate((40, 17, 60)):
        rng = np.random.default_rng(k + 1)
        write_pair(work / f"c{k}", [np.append(rng.integers(1, 500, m), 0) for m in rng.integers(3, 30, n)], "uint16")


def ran(program, path, told, work):
    words = [sys.executable, "-c", program, path, json.dumps(told), str(work)]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    made = json.loads(next(x for x in out.splitlines() if x.startswith("MADE")).removeprefix("MADE"))
    return {name: np.array(rows, np.int16) for name, rows in made.items()}


def compile_helpers(source, target):
    words = [sys.executable, "-m", "pybind11", "--includes"]
    flags = subprocess.run(words, capture_output=True, text=True).stdout.split()
    command = ["g++", "-O2", "-w", "-shared", "-std=c++17", "-fPIC", *flags, source, "-o", str(target)]
    subprocess.run(command, check=True)


def megatron(path, work):
    corpora(work)
    compile_helpers(f"{path}/megatron/core/datasets/helpers.cpp",
                    work / ("helpers_cpp" + sysconfig.get_config_var("EXT_SUFFIX")))  # fmt: skip
    three = ["c0", "c1", "c2"]
    told = {"seed": 1234, "seq_len": 16, "cases": {
        "by_length": {"corpora": three, "weights": None, "size": 60},
        "by_length_capped": {"corpora": three, "weights": None, "size": 9999},
        "exhaustive": {"corpora": three, "weights": None, "size": None},
        "by_weight": {"corpora": three, "weights": [0.1, 0.2, 0.4], "size": 70},
        "one_with_weight": {"corpora": ["c0"], "weights": [1.0], "size": 30},
    }}  # fmt: skip
    about = {
        "program": "NVIDIA/Megatron-LM BlendedMegatronDatasetBuilder of GPTDataset",
        "commit": commit(path),
        **told,
    }
    save("megatron_blends", about, {}, ran(MEGATRON, path, told, work))


def neox(path, work):
    corpora(work)
    told = {"seq_len": 24, "cases": {
        "chopped": {"corpus": "c0", "documents": [0, 40], "num_samples": 70, "seed": 1234, "allow_chopped": True},
        "split": {"corpus": "c2", "documents": [20, 50], "num_samples": 45, "seed": 7, "allow_chopped": True},
        "whole": {"corpus": "c0", "documents": [0, 40], "num_samples": 30, "seed": 1, "allow_chopped": False},
    }}  # fmt: skip
    about = {
        "program": "EleutherAI/gpt-neox GPT2Dataset, pack_impl pack_until_overflow",
        "commit": commit(path),
        **told,
    }
    save("neox_overflow", about, {}, ran(NEOX, path, told, work))
    neox_blends(path, work)


def neox_blends(path, work):
    """Blends that ask a source for more than its length: its list holds one more, and beyond that it begins again."""
    compile_helpers(f"{path}/megatron/data/helpers.cpp", work / "helpers.so")
    cases = {
        "one_more": {"corpora": ["c0", "c1", "c2"], "weights": [0.25, 0.25, 0.5], "num_samples": 40},
        "begins_again": {"corpora": ["c1", "c2"], "weights": [0.5, 0.5], "num_samples": 22},
    }
    for case in cases.values():  # get_normalized_weights_and_num_samples of data_utils, without its surplus
        case["requests"] = [math.ceil(case["num_samples"] * w) for w in case["weights"]]
    told = {"seed": 1234, "seq_len": 24, "cases": cases}
    about = {"program": "EleutherAI/gpt-neox BlendableDataset of GPT2Dataset", "commit": commit(path), **told}
    save("neox_blends", about, {}, ran(NEOX, path, told, work))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="append", default=[])
    for peer in parser.parse_args().peer:
        name, path = peer.split("=", 1)
        with tempfile.TemporaryDirectory() as work:
            globals()[name](str(Path(path).resolve()), Path(work))


if __name__ == "__main__":
    main()
