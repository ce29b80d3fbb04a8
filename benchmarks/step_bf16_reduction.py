"""Does reducing gradients in bf16 over many ranks move the logits? A study of allenai/OLMo#514 on virtual ranks.

    python benchmarks/step_bf16_reduction.py run --out study.jsonl --steps 250     # about an hour on one busy core
    python benchmarks/step_bf16_reduction.py tables study.jsonl                    # the tables of docs/bf16-reduction.md
    python benchmarks/step_bf16_reduction.py persistence --warm 40                 # does the leak point the same way twice?

The global batch is 512 sequences for every W, dealt to W ranks: only the length of the sum changes, never the data. W is a
power of two, so every division is exact, and DDP, NO_SHARD with fp32 and NO_SHARD with bf16 differ in buckets and wire alone.

What is reduced are gradients of single sequences (torch.func), averaged in fp32 over a rank's share. The ring is a vectorised
form of the executor's; before anything else it is compared with the executor's plain reducer, bit for bit, at every W.
"""

import argparse
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import zstandard
from scipy import stats
from torch.func import functional_call, grad, vmap

from pretrace.data.embedded import books
from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt_neox
from pretrace.step.clip import coefficient, total_norm
from pretrace.step.finish_spec import ClipSpec
from pretrace.step.optim import init_state, update
from pretrace.step.optim_spec import AdamW, decay_matrices
from pretrace.step.orders import GlooRing, gloo_chunks, paths
from pretrace.step.reduce import fold_all
from pretrace.step.reduction_spec import root_low
from pretrace.step.telemetry import head_leak, logit_sums

BATCH, SEQ, VOCAB = 512, 16, 128
WORLDS = (1, 8, 32, 128, 256, 512)
RING = GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20)
CLIP = ClipSpec(max_norm=1.0, scope="global", norm="tensors", rule="torch", eps=1e-6)
ADAM = AdamW(kind="adamw", kernel="torch_foreach", betas=(0.9, 0.95), eps=1e-8, eps_place="corrected",
             bias_correction=True, decay_place="before", groups=decay_matrices(0.1))  # fmt: skip
PEAK, WARMUP, EVERY = 2e-3, 20, 5
SPEC = gpt_neox(vocab_size=VOCAB, max_seq_len=SEQ, n_layers=2, d_model=32, n_heads=2)


def text():
    """The book corpus as bytes; what is no ASCII becomes one symbol."""
    with books().open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
        whole = "\n".join(json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8"))
    return np.minimum(np.frombuffer(whole.encode(), dtype=np.uint8), VOCAB - 1).astype(np.int64)


def batch(tokens, step, size=BATCH):
    starts = np.random.default_rng(step).integers(0, len(tokens) - SEQ - 1, size)
    rows = torch.from_numpy(np.stack([tokens[s : s + SEQ + 1] for s in starts]))
    return rows[:, :-1], rows[:, 1:]


def sequence_gradients(model, z_loss):
    """A function to [B, N] fp32: the gradient of every sequence's mean loss, parameters in the model's order."""

    def loss(params, x, y):
        logits = functional_call(model, params, (x[None],))[0]
        lse = torch.logsumexp(logits, -1)
        return (lse - logits.gather(-1, y[:, None])[:, 0] + z_loss * lse.square()).mean()

    each = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=128)
    return lambda params, x, y: torch.cat([g.reshape(len(x), -1) for g in each(params, x, y).values()], 1)


def buckets(params, engine):
    """Lists of ranges of the flat gradient that are reduced together: all at once (DDP below 1 MiB), or one a unit (FSDP)."""
    at, units = 0, {}
    for name, p in params.items():
        unit = "all" if engine == "ddp" else ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "root"
        units.setdefault(unit, []).append((at, at + p.numel()))
        at += p.numel()
    return list(units.values())


def ring(matrix):
    """gloo's ring over the rows of [W, n], one rounding an addition; all chunks side by side."""
    world, n = matrix.shape
    if world == 1:
        return matrix[0].clone()
    size = gloo_chunks(n, matrix.element_size(), world)[0][1]
    padded = torch.zeros(world, world * size, dtype=matrix.dtype)
    padded[:, :n] = matrix
    by_chunk = padded.view(world, world, size)
    chunk = torch.arange(world)
    total = by_chunk[(chunk - 1) % world, chunk]
    for k in range(1, world):
        total = by_chunk[(chunk - 1 - k) % world, chunk] + total
    return total.reshape(-1)[:n]


def check_ring():
    """The vectorised ring against the executor's plain one, bit for bit."""
    for world in WORLDS:
        for dtype in (torch.float32, torch.bfloat16):
            matrix = torch.randn(world, 3001, generator=torch.Generator().manual_seed(world)).to(dtype)
            plain = fold_all(list(matrix), paths(RING, 3001, matrix.element_size(), world, "all_reduce"))
            assert torch.equal(ring(matrix), plain), (world, dtype)


def reduced(sequences, units, world, wire):
    """The mean gradient as `world` ranks make it on this wire: [N] fp32."""
    ranks = sequences.view(world, BATCH // world, -1).mean(1)
    low = root_low(world)
    out = torch.empty(sequences.shape[1])
    for pieces in units:
        flat = torch.cat([ranks[:, a:b] for a, b in pieces], 1).to(wire).div_(low)
        total, at = ring(flat).div_(world / low).float(), 0
        for a, b in pieces:
            out[a:b] = total[at : at + b - a]
            at += b - a
    return out


def figures(gradient, exact, head):
    a, b = head
    scale, wide = float(exact @ exact), gradient.double()
    return {
        "error": float((wide - exact).norm()) / scale**0.5,
        "gain": float(wide @ exact) / scale,
        "leak": head_leak(gradient[a:b].view(VOCAB, -1)),
    }


def span(params, name):
    at = 0
    for key, p in params.items():
        if key == name:
            return at, at + p.numel()
        at += p.numel()
    raise KeyError(name)


class Run:
    """One training run: parameters, moments, and the rule of its reduction."""

    def __init__(self, name, wire, world, z_loss):
        self.name, self.wire, self.world, self.z_loss = name, wire, world, z_loss
        self.model = Decoder(SPEC, attention="eager")
        initialise(self.model, SPEC, seed=0)
        self.params = {n: p.detach() for n, p in self.model.named_parameters()}
        self.state = init_state(ADAM, self.params)
        self.units = buckets(self.params, name)
        self.gradients = sequence_gradients(self.model, z_loss)
        self.head = span(self.params, "head.weight")

    def step(self, tokens, step):
        sequences = self.gradients(self.params, *batch(tokens, step))
        flat = reduced(sequences, self.units, self.world, self.wire)
        seen = figures(flat, sequences.double().mean(0), self.head) if (step + 1) % EVERY == 0 else {}
        grads, at = {}, 0
        for name, p in self.params.items():
            grads[name] = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        norm = total_norm(list(grads.values()), "tensors")
        torch._foreach_mul_(list(grads.values()), coefficient(CLIP, norm))
        update(ADAM, self.state, self.params, grads, PEAK * min(1.0, (step + 1) / WARMUP))
        return seen | {"grad_norm": float(norm)}

    @torch.no_grad()
    def held_out(self, tokens):
        x, y = batch(tokens, 10**9, 256)
        logits = functional_call(self.model, self.params, (x,))
        found = logit_sums(logits, y).stats
        loss = float(torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1)))
        return {"loss": loss, "norm": float(logits.norm(dim=-1).mean()), "lse": found.lse, "mean": found.mean,
                "spread": float(logits.std(-1).mean())}  # fmt: skip


def grid(run, tokens, step):
    """Error, gain and leak of every engine at every W on one state, with and without z-loss."""
    rows = []
    for z in (0.0, 1e-4):
        sequences = sequence_gradients(run.model, z)(run.params, *batch(tokens, step))
        exact = sequences.double().mean(0)
        for engine, wire in (("ddp", torch.float32), ("noshard-fp32", torch.float32), ("noshard-bf16", torch.bfloat16)):
            units = buckets(run.params, engine)
            for world in WORLDS:
                found = figures(reduced(sequences, units, world, wire), exact, run.head)
                rows.append({"kind": "grid", "step": step, "engine": engine, "world": world, "z_loss": z, **found})
    return rows


def runs():
    fp32, bf16 = torch.float32, torch.bfloat16
    made = [Run("noshard-fp32", fp32, w, 0.0) for w in (1, 512)] + [Run("ddp", fp32, 512, 0.0)]
    made += [Run("noshard-bf16", bf16, w, 0.0) for w in WORLDS]
    made += [Run("noshard-fp32", fp32, 512, 1e-4)]
    return made + [Run("noshard-bf16", bf16, w, 1e-4) for w in (8, 128, 512)]


def study(out, steps):
    check_ring()
    tokens, made, start = text(), runs(), time.time()
    with open(out, "w") as file:

        def put(row):
            file.write(json.dumps(row) + "\n")
            file.flush()

        put({"kind": "about", "torch": torch.__version__, "batch": BATCH, "seq": SEQ, "vocab": VOCAB,
             "params": sum(p.numel() for p in made[0].params.values()), "steps": steps})  # fmt: skip
        for step in range(steps):
            if step in (0, 50, 150, 250, 500, 1000):
                for row in grid(made[0], tokens, step):
                    put(row)
            for run in made:
                seen = run.step(tokens, step)
                if (step + 1) % EVERY == 0:
                    put({"kind": "run", "name": run.name, "world": run.world, "z_loss": run.z_loss, "step": step + 1,
                         **seen, **run.held_out(tokens)})  # fmt: skip
            print(f"step {step + 1} of {steps}, {time.time() - start:.0f} s", file=sys.stderr, flush=True)


def tables(path):
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    print(json.dumps(rows[0]))
    show_grid([r for r in rows if r["kind"] == "grid"])
    show_runs([r for r in rows if r["kind"] == "run"])


def show_grid(rows):
    for step in sorted({r["step"] for r in rows}):
        print(f"\none update at step {step}: error | gain | leak, W = {WORLDS}")
        for z in (0.0, 1e-4):
            for engine in ("ddp", "noshard-fp32", "noshard-bf16"):
                cells = [r for r in rows if (r["step"], r["z_loss"], r["engine"]) == (step, z, engine)]
                print(
                    f"z={z:<6g} {engine:<13}",
                    "  ".join(f"{c['error']:.1e} {c['gain']:.4f} {c['leak']:.1e}" for c in cells),
                )


def show_runs(rows):
    series = {}
    for r in rows:
        series.setdefault((r["name"], r["world"], r["z_loss"]), {})[r["step"]] = r
    last = min(max(s) for s in series.values())
    late = [t for t in range(EVERY, last + 1, EVERY) if t > last // 2]
    print(
        f"\ntraining, held-out figures at step {last}; shift against fp32 W=512 and slopes per 1,000 steps over its last half"
    )
    for (name, world, z), s in series.items():
        base = series["noshard-fp32", 512, z]
        shift = {q: np.mean([s[t][q] - base[t][q] for t in late]) for q in ("loss", "norm", "lse", "mean")}
        slope = {q: 1000 * stats.linregress(late, [s[t][q] for t in late]).slope for q in ("norm", "lse")}
        leak = np.mean([s[t]["leak"] for t in late])
        error = np.mean([s[t]["error"] for t in late])
        print(f"{name:<13} W={world:<4} z={z:<6g} loss {s[last]['loss']:.4f} norm {s[last]['norm']:.3f} lse {s[last]['lse']:.4f} "
              f"| shift {' '.join(f'{q} {v:+.4f}' for q, v in shift.items())} | slope norm {slope['norm']:+.1f} "
              f"lse {slope['lse']:+.2f} | error {error:.1e} leak {leak:.1e}")  # fmt: skip
    drift(series, late)
    growth(series, late)


def drift(series, late):
    """How fast log-sum-exp leaves the fp32 run: slope of the difference, per 1,000 steps, 95% of a line's fit."""
    print()
    for (name, world, z), s in series.items():
        base = series["noshard-fp32", 512, z]
        fit = stats.linregress(late, [s[t]["lse"] - base[t]["lse"] for t in late])
        half = stats.t.ppf(0.975, len(late) - 2) * fit.stderr
        if name == "noshard-bf16":
            print(f"lse minus fp32, W={world:<4} z={z:<6g}: {1000 * fit.slope:+.3f} +- {1000 * half:.3f} per 1,000 steps, "
                  f"{s[late[-1]]['lse'] - base[late[-1]]['lse']:+.4f} at step {late[-1]}")  # fmt: skip


def growth(series, late):
    """Excess over fp32 at the same step, against W: a line through it with its 95% interval; the floor is fp32 against fp32."""
    worlds = [w for w in WORLDS if ("noshard-bf16", w, 0.0) in series]
    base, twin = series["noshard-fp32", 512, 0.0], series["noshard-fp32", 1, 0.0]
    print()
    for quantity in ("norm", "lse", "mean", "loss"):
        floor = np.mean([abs(twin[t][quantity] - base[t][quantity]) for t in late])
        excess = [
            np.mean([series["noshard-bf16", w, 0.0][t][quantity] - base[t][quantity] for t in late]) for w in worlds
        ]
        fit = stats.linregress(worlds, excess)
        half = stats.t.ppf(0.975, len(worlds) - 2) * fit.stderr
        print(f"{quantity:<5} excess {' '.join(f'{e:+.4f}' for e in excess)}; line {fit.slope * 512:+.4f} +- {half * 512:.4f} "
              f"per 512 ranks (95%), r2 {fit.rvalue**2:.2f}; fp32 W=1 against W=512 differs by {floor:.4f}")  # fmt: skip


def persistence(warm, draws=16):
    """Whether rounding errors of different batches agree: |mean| / mean |.| of the leak 1'G and of the whole error.

    1 would be a drift that adds up step by step, 1 / sqrt(draws) = 0.25 is what independent errors give.
    """
    tokens, run = text(), Run("noshard-fp32", torch.float32, 512, 0.0)
    for step in range(warm):
        run.step(tokens, step)
    a, b = run.head
    seen = {world: [] for world in WORLDS}
    for draw in range(draws):
        sequences = run.gradients(run.params, *batch(tokens, 10_000 + draw))
        exact = sequences.double().mean(0)
        for world in WORLDS:
            wrong = reduced(sequences, run.units, world, torch.bfloat16).double() - exact
            seen[world].append((wrong, wrong[a:b].view(VOCAB, -1).sum(0), exact))
    print(f"after {warm} updates, {draws} batches; independent errors would give {draws**-0.5:.2f}")
    for world, found in seen.items():
        errors, leaks, exacts = (torch.stack(x) for x in zip(*found))
        shares = [float(v.mean(0).norm() / v.norm(dim=1).mean()) for v in (errors, leaks, exacts)]
        print(f"W={world:<4} error {shares[0]:.2f}  leak {shares[1]:.2f}  (gradient itself {shares[2]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--out", required=True)
    run.add_argument("--steps", type=int, default=250)
    verbs.add_parser("tables").add_argument("path")
    verbs.add_parser("persistence").add_argument("--warm", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.verb == "run":
        study(asked.out, asked.steps)
    elif asked.verb == "tables":
        tables(asked.path)
    else:
        persistence(asked.warm)


if __name__ == "__main__":
    main()
