"""Scoring HellaSwag and WikiText: pretrace beside lm-evaluation-harness's hf backend, same rows, same windows, same numbers.

    python benchmarks/evaluate.py [--layers 6 --width 384] [--threads 2] [--rounds 3] [--hellaswag 48] [--wikitext 3]
        [--batch 1,4,16] [--batch-tokens 1024] [--prefix "chrt -r 1"]

A GPT-2 of random weights with GPT-2's own tokenizer (50,257 ids) and 1,024 positions. Each measurement is a process of its own,
interleaved; timed is what the harness calls (`lm.loglikelihood`, `lm.loglikelihood_rolling`): tokenizing, scoring, adding up, not
imports, loading or tasks. The peer runs at every batch size of --batch first and then at its best. Peak memory is the process's.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

TASKS = {"hellaswag": "rows", "wikitext": "pages"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 6), ("width", 384), ("threads", 2), ("rounds", 3), ("hellaswag", 48), ("wikitext", 3),
                        ("batch-tokens", 1024), ("max-length", 1024)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", default="1,4,16", help="batch sizes of the peer to choose from")
    parser.add_argument("--prefix", default="", help="words before every measured command")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--task", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = arguments()
    if args.child:
        return child(args)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    with tempfile.TemporaryDirectory() as folder:
        args.folder = Path(folder)
        subprocess.run(command(args, "make", ""), check=True, env=environment(args))
        print(f"GPT-2, {args.layers} layers, width {args.width}, {args.threads} threads, max_length {args.max_length}")
        for task in TASKS:
            compare(args, task)
    return None


def compare(args, task):
    count = getattr(args, task)
    sweep = {size: measured(args, f"theirs:{size}", task)["seconds"] for size in args.batch.split(",")}
    best = min(sweep, key=sweep.get)
    print(
        f"\n{task}, {count} {TASKS[task]}: lm-eval hf by batch size "
        + ", ".join(f"{b}: {s:.2f} s" for b, s in sweep.items())
    )
    sides = {"lm-eval hf": f"theirs:{best}", "pretrace": "ours"}
    runs = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, way in sides.items():
            runs[name].append(measured(args, way, task))
    for name, found in runs.items():
        seconds, cpu = [one["seconds"] for one in found], min(one["cpu"] for one in found)
        print(f"  {name:<12} min {min(seconds):7.2f} s  median {statistics.median(seconds):7.2f} s  cpu {cpu:7.2f} s  "
              f"peak {max(one['peak_mib'] for one in found):6.0f} MiB")  # fmt: skip
    a, b = (runs[name] for name in sides)
    ratios = {"min": min, "median": statistics.median}
    wall = [
        f"{name} {pick(x['seconds'] for x in a) / pick(x['seconds'] for x in b):.2f}x" for name, pick in ratios.items()
    ]
    print(f"  ratio        {', '.join(wall)}, cpu {min(x['cpu'] for x in a) / min(x['cpu'] for x in b):.2f}x")
    worst = max(abs(x - y) / n for x, y, n in zip(a[0]["totals"], b[0]["totals"], b[0]["tokens"]))
    print(f"  numbers      {len(a[0]['totals'])} sums, largest difference {worst:.1e} nats a token; greedy flags "
          f"{'equal' if a[0]['greedy'] == b[0]['greedy'] else 'DIFFER'}")  # fmt: skip
    work = [(runs[0]["gflop"], min(x["cpu"] for x in runs)) for runs in (b, a)]
    print(f"  bound        matrices {work[0][0]:.0f} GFLOP here and {work[1][0]:.0f} there; a cpu second makes "
          f"{work[0][0] / work[0][1]:.0f} and {work[1][0] / work[1][1]:.0f} of them")  # fmt: skip


def environment(args):
    return {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
            "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


def command(args, way, task):
    keep = ("layers", "width", "threads", "hellaswag", "wikitext", "batch_tokens", "max_length")
    options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in keep]
    return [
        *args.prefix.split(),
        sys.executable,
        __file__,
        *options,
        f"--child={way}",
        f"--task={task}",
        f"--folder={args.folder}",
    ]


def measured(args, way, task):
    out = subprocess.run(command(args, way, task), env=environment(args), capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr[-3000:])
    return json.loads(out.stdout.strip().split("\n")[-1])


def child(args):
    import torch

    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    if args.child == "make":
        return make(args)
    from pretrace.evaluate.data_files import parse
    from pretrace.evaluate.tasks import loading

    with loading(parse([f"{args.task}={args.folder / args.task}.jsonl"])) as loader:
        loaded = loader.load(args.task)
    (task,) = loaded.tasks.values()
    task.set_config(key="num_fewshot", value=0)
    task.build_all_requests()
    model, work = ours(args) if args.child == "ours" else theirs(args, int(args.child.split(":")[1]))
    ask = model.loglikelihood_rolling if args.task == "wikitext" else model.loglikelihood
    model.loglikelihood(
        [SimpleNamespace(args=("Nothing of the", " rows"), task_name="", doc_id=0)]
    )  # loads and warms up
    began, cpu = time.perf_counter(), time.process_time()
    answers = ask(task.instances)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    totals = [a[0] if isinstance(a, tuple) else a for a in answers]
    greedy = [a[1] if isinstance(a, tuple) else None for a in answers]
    asked = work(task.instances)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mib": peak, "totals": totals, "greedy": greedy, **asked}))
    return None


def make(args):
    import json as text

    import evaluate_lab as lab

    args.folder.mkdir(exist_ok=True)
    lab.gpt2(args.folder / "model", n_embd=args.width, n_layer=args.layers, n_head=args.width // 64, n_positions=1024)
    for task in TASKS:
        lines = lab.ROWS[task].read_text().strip().split("\n")
        assert text.loads(lines[0])
        (args.folder / f"{task}.jsonl").write_text("\n".join(lines[: getattr(args, task)]) + "\n")


def flop(args, body, head):
    """Multiplications and additions of the matrices: 12 D^2 a layer and position, V D a position with logits."""
    return 2 * (body * 12 * args.layers * args.width**2 + head * 50257 * args.width) / 1e9


def plan(args, instances):
    from pretrace.evaluate.encode import encode_pairs, encode_texts
    from pretrace.evaluate.resolve import Wanted, resolve
    from pretrace.evaluate.subject import subjects
    from pretrace.evaluate.text import open_tokenizer

    (subject,) = subjects([str(args.folder / "model")], config=None, tokenizer=None)
    coder = open_tokenizer(subject.tokenizer)
    settings, _ = resolve(
        Wanted(max_length=args.max_length, batch_tokens=args.batch_tokens, threads=args.threads), subject, coder
    )
    if instances is None:
        return subject, coder, settings
    if args.task == "wikitext":
        return encode_texts(coder, [one.args[0] for one in instances], settings)
    return encode_pairs(coder, [one.args for one in instances], settings)


def ours(args):
    from pretrace.evaluate.compute import Computed
    from pretrace.evaluate.harness import model_class
    from pretrace.evaluate.keep import Kept
    from pretrace.score.requests import packs

    subject, coder, settings = plan(args, None)
    model = model_class()(coder, settings, Computed(subject, settings, Kept(None)))

    def work(instances):
        asked = plan(args, instances)
        parts = [part for one in asked for part in one.parts]
        body = sum(pack.length for pack in packs(parts, settings.batch_tokens))
        scored = [len(one.tokens) for one in asked]
        return {"tokens": scored, "gflop": flop(args, body, sum(scored))}

    return model, work


def theirs(args, batch_size):
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(args.folder / "model"), max_length=args.max_length, batch_size=batch_size, dtype="float32",
                 device="cpu")  # fmt: skip

    def work(instances):
        asked = plan(args, instances)
        body = sum(len(part.context) + len(part.continuation) - 1 for one in asked for part in one.parts)
        return {"tokens": [len(one.tokens) for one in asked], "gflop": flop(args, body, body)}

    return model, work


if __name__ == "__main__":
    main()
