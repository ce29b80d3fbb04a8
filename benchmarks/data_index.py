"""doc/sample/shuffle index: pretrace against numpy + Megatron-core's C++, same bits, CPU seconds and peak memory.

    python benchmarks/data_index.py --peer megatron=PATH_TO_MEGATRON_LM [--documents 1e5 1e7 1e8] [--runs 3]

Document lengths are made (log-normal, median 403 tokens). Each run is a process of its own, the two sides take turns. The peer is
built from the checkout: its two numpy functions are taken from core/datasets/gpt_dataset.py as they stand, its helpers.cpp is
compiled (needs g++ and pybind11). The ceiling is what memory bandwidth allows for the sequential part: lengths and order read
once, rows written once.
"""

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

SEQ_LEN = 2048


def lengths_file(folder, n):
    path = folder / f"lengths-{n}.npy"
    if not path.exists():
        np.save(path, np.maximum(1, np.random.default_rng(0).lognormal(6, 1, n)).astype(np.int32))
    return path


def peer_functions(root):
    """_build_document_index and _build_shuffle_index of the peer, without importing the rest of it."""
    source = (root / "megatron/core/datasets/gpt_dataset.py").read_text()
    wanted = ("_build_document_index", "_build_shuffle_index")
    nodes = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    space = {"numpy": np}
    exec(compile(ast.Module(nodes, []), "gpt_dataset.py", "exec"), space)
    return [space[name] for name in wanted]


def compile_helpers(root, folder):
    target = folder / f"helpers_cpp{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists():
        import pybind11

        subprocess.run(
            ["g++", "-O3", "-Wall", "-shared", "-std=c++17", "-fPIC", f"-I{pybind11.get_include()}",
             f"-I{sysconfig.get_paths()['include']}", str(root / "megatron/core/datasets/helpers.cpp"), "-o", str(target)],
            check=True)  # fmt: skip


def run_peer(root, folder, lengths, epochs, seed):
    sys.path.insert(0, str(folder))
    import helpers_cpp

    build_documents, build_shuffle = peer_functions(root)
    documents = np.arange(len(lengths), dtype=np.int32)
    begin = time.process_time()
    state = np.random.RandomState(seed)
    tokens = int(np.sum(lengths[documents]))
    doc_idx = build_documents(documents, epochs, state, False)
    sample_idx = helpers_cpp.build_sample_idx_int32(lengths, doc_idx, SEQ_LEN, epochs, tokens, True, 1)
    shuffle_idx = build_shuffle(sample_idx.shape[0] - 1, sample_idx.shape[0] - 1, state)
    return time.process_time() - begin, (doc_idx, sample_idx, shuffle_idx)


def run_ours(lengths, epochs, seed, kernels):
    from pretrace.data import index

    warm = time.process_time()
    tiny = index.neox_plan(100, range(4), 8, 5, "v1.0")
    index.build(tiny, np.full(4, 25, np.int32), 1, kernels=kernels)  # import and load the compiled code
    load_s = time.process_time() - warm
    begin = time.process_time()
    tokens = int(np.sum(lengths, dtype=np.int64))
    wanted = (epochs * tokens - 1) // SEQ_LEN
    plan = index.neox_plan(tokens, range(len(lengths)), SEQ_LEN, wanted, "v1.0")
    maps = index.build(plan, lengths, seed, kernels=kernels)
    return time.process_time() - begin, (maps.doc_idx, maps.sample_idx, maps.shuffle_idx), load_s


def peak_mib():
    """High-water mark of this process; ru_maxrss would count what the parent held before exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def child(side, root, folder, path, epochs):
    lengths = np.load(path, mmap_mode="r")
    load_s = 0.0
    if side == "peer":
        cpu, arrays = run_peer(Path(root), Path(folder), lengths, epochs, 1234)
    else:
        cpu, arrays, load_s = run_ours(lengths, epochs, 1234, "plain" if side == "plain" else "fast")
    peak = peak_mib()
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    found = {"cpu_s": cpu, "load_s": load_s, "peak_mib": peak, "sha256": digest.hexdigest(), "samples": len(arrays[2])}
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--documents", nargs="+", type=float, default=[1e5, 1e7, 1e8])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir() + "/pretrace-bench")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        side, root, folder, path, epochs = args.child
        child(side, root, folder, path, int(epochs))
        return
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    root = dict(p.split("=", 1) for p in args.peer).get("megatron", "")
    if root:
        compile_helpers(Path(root), folder)
    sides = ("ours", "peer") if root else ("ours", "plain")
    print(f"seq_len {SEQ_LEN}, {args.epochs} epoch(s), {args.runs} runs in turn; min (median) of CPU seconds")
    for n in map(int, args.documents):
        compare(sides, root, folder, lengths_file(folder, n), args)


def compare(sides, root, folder, path, args):
    results = {side: [] for side in sides}
    for _ in range(args.runs):
        for side in sides:
            words = [sys.executable, __file__, "--child", side, root, str(folder), str(path), str(args.epochs)]
            out = subprocess.run(words, capture_output=True, text=True, check=True)
            results[side].append(json.loads(out.stdout))
    n, samples = len(np.load(path, mmap_mode="r")), results["ours"][0]["samples"]
    bits = {r["sha256"] for rs in results.values() for r in rs}
    print(f"\n{n:,} documents, {samples:,} samples, same bits: {len(bits) == 1}")
    best, memory = {}, {}
    for side, rs in results.items():
        cpu = sorted(r["cpu_s"] for r in rs)
        best[side], memory[side] = cpu[0], max(r["peak_mib"] for r in rs)
        load = min(r["load_s"] for r in rs)
        print(
            f"  {side:5s} {cpu[0]:8.3f} ({cpu[len(cpu) // 2]:.3f}) s, load {load:.2f} s, peak {memory[side]:,.0f} MiB"
        )
    other = sides[1]
    print(
        f"  CPU ratio {best[other] / best['ours']:.2f}x, memory {memory['ours'] / memory[other]:.2f} of the other side's"
    )
    print(f"  ceiling: {ceiling(args.epochs * n, samples):.3f} s (sequential bytes at this machine's copy rate)")


def ceiling(slots, samples):
    block = np.ones(1 << 25, np.int64)
    begin = time.process_time()
    block.copy()
    rate = 2 * block.nbytes / (time.process_time() - begin)
    return (12 * slots + 12 * samples) / rate


if __name__ == "__main__":
    main()
