"""Text to finished token files: pretrace (fast backend under its judge, and the plain backend) against the peers.

    python benchmarks/data_tokenise.py --tokenizer tokenizer.json [--text corpus.jsonl | --megabytes 200]
        [--peer neox=PATH_TO_GPT_NEOX] [--runs 1] [--skip tokenizers]

Peers: datatrove (package; DocumentTokenizer, not shuffled; needs orjson), GPT-NeoX (a checkout; its preprocess_data.py with
--append-eod; needs lm_dataformat and ftfy). Without --text one fixed text is made from the sources and documents of this Python
environment (files in sorted order, each once). Every side runs in a process of its own with one thread, sides take turns;
CPU seconds of the whole process, children included; peak memory of the largest process. All ids are compared in full, document by
document, with the first side's.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

END = "<|endoftext|>"
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


def make_text(path, megabytes):
    """One fixed text: every .py, .md, .rst and .txt of the environment, in sorted order, each content once."""
    seen, total = set(), 0
    with path.open("w", encoding="utf-8") as out:
        for file in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
            if file.suffix not in (".py", ".md", ".rst", ".txt") or not file.is_file():
                continue
            try:
                text = file.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            digest = hashlib.md5(text.encode()).digest()
            if len(text) < 200 or digest in seen:
                continue
            seen.add(digest)
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            total += len(text.encode())
            if total >= megabytes * 1e6:
                break


def ours(backend):
    def start(args, text, out):
        spec = {
            "corpus": {"paths": [str(text)], "format": "jsonl", "field": "text", "holds": "text"},
            "tokenizer": args.tokenizer, "prepend": None, "append": END, "empty": "drop", "special_text": "token",
            "dtype": "uint16", "backend": backend, "judge_every": 1000,
            "on_difference": "stop" if backend == "fastokens" else "reference",
        }  # fmt: skip
        (out / "spec.json").write_text(json.dumps(spec))  # JSON is YAML
        return [
            sys.executable,
            "-m",
            "pretrace",
            "data",
            "tokenise",
            str(out / "spec.json"),
            "--out",
            str(out / "pair"),
        ]

    return start


def read_ours(out):
    return read_pair(out / "pair")


def read_pair(prefix):
    raw = np.fromfile(f"{prefix}.idx", np.uint8)
    n = int.from_bytes(raw[18:26].tobytes(), "little")
    return np.fromfile(f"{prefix}.bin", np.uint16), raw[34 : 34 + 4 * n].view("<i4")


NEOX = """
import runpy, sys, types, packaging.version
shim = types.ModuleType("pkg_resources")  # removed from setuptools; NeoX asks it for `packaging` only
shim.packaging = packaging
sys.modules["pkg_resources"] = shim
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def neox(args, text, out):
    root = Path(args.peers["neox"])
    return [sys.executable, "-c", NEOX, str(root / "tools/datasets/preprocess_data.py"), "--input", str(text), "--output-prefix",
            str(out / "neox"), "--vocab-file", args.tokenizer, "--tokenizer-type", "HFTokenizer", "--append-eod"]  # fmt: skip


def read_neox(out):
    return read_pair(out / "neox_text_document")


DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
text, out, tokenizer, end = sys.argv[1:]
import os
LocalPipelineExecutor(pipeline=[
    JsonlReader(os.path.dirname(text), glob_pattern=os.path.basename(text)),
    DocumentTokenizer(out, tokenizer_name_or_path=tokenizer, eos_token=end, shuffle_documents=False),
], tasks=1, logging_dir=out + "/logs").run()
"""


def datatrove(args, text, out):
    return [sys.executable, "-c", DATATROVE, str(text), str(out), args.tokenizer, END]


def read_datatrove(out):
    (shard,) = out.glob("*.ds")
    ends = np.fromfile(f"{shard}.index", "<u8").astype(np.int64)
    return np.fromfile(shard, np.uint16), np.diff(ends, prepend=0)


SIDES = {
    "fastokens": (ours("fastokens"), read_ours),
    "gigatoken": (ours("gigatoken"), read_ours),
    "tokenizers": (ours("tokenizers"), read_ours),
    "datatrove": (datatrove, read_datatrove),
    "neox": (neox, read_neox),
}


def measured(words):
    """CPU seconds (children included) and peak MiB of the largest process under `words`."""
    code = (
        "import json, resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)\n"
        "r = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([done.returncode, r.ru_utime + r.ru_stime, r.ru_maxrss / 1024, done.stderr[-2000:]]))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env={**os.environ, **ONE_THREAD}
    )
    status, cpu, peak, errors = json.loads(out.stdout)
    if status:
        raise SystemExit(f"{words[:4]} failed:\n{errors}")
    return cpu, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text")
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder", default=tempfile.gettempdir() + "/pretrace-bench")
    args = parser.parse_args()
    args.peers = dict(p.split("=", 1) for p in args.peer)
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = Path(args.text).resolve() if args.text else folder / f"text-{args.megabytes:g}.jsonl"
    if not text.exists():
        make_text(text, args.megabytes)
    size = sum(len(json.loads(line)["text"].encode()) for line in text.open(encoding="utf-8")) / 1e6
    sides = [s for s in SIDES if s not in args.skip and (s != "neox" or "neox" in args.peers)]
    results, first = {side: [] for side in sides}, None
    print(f"{text.name}: {size:.1f} MB of text, {args.runs} run(s) in turn")
    for _ in range(args.runs):
        for side in sides:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                results[side].append(measured(SIDES[side][0](args, text, Path(out))))
                ids, lengths = SIDES[side][1](Path(out))
            first = first or (ids, lengths)
            same = np.array_equal(ids, first[0]) and np.array_equal(lengths, first[1])
            cpu, peak = results[side][-1]
            print(f"  {side:11s} {cpu:8.2f} CPU s  {size / cpu:8.2f} MB/CPU s  peak {peak:,.0f} MiB  "
                  f"{len(ids):,} ids of {len(lengths):,} documents, equal to the first side's: {same}", flush=True)  # fmt: skip
    best = {side: min(cpu for cpu, _ in rs) for side, rs in results.items()}
    for backend in ("fastokens", "gigatoken"):
        for side in sides:
            if backend in best and side not in ("fastokens", "gigatoken"):
                print(
                    f"  pretrace with {backend} does {best[side] / best[backend]:.1f}x the text of {side} a CPU second"
                )
    print(f"  (this script: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB)")


if __name__ == "__main__":
    main()
