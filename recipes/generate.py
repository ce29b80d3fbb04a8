"""Writes the recipes of this folder: CONFIGS is a folder with EleutherAI's `gpt-neox/pythia-*.yml` and `hf/pythia-*/config.json`.

    python recipes/generate.py CONFIGS [OUT]

Every value that a published file states is read from it; what it leaves open is declared or assumed here, and says so. The test
suite runs this program and compares what it writes with what stands here.
"""

import json
import sys
from pathlib import Path

import yaml

from pretrace.checkpoint import spec_of
from pretrace.data.order import DataSpec
from pretrace.model.presets import gpt2, gpt_neox
from pretrace.model.spec import DropoutSpec, InitSpec
from pretrace.recipe import CheckpointSpec, Recipe, Seeds, to_yaml
from pretrace.spec import Source, build
from pretrace.step.importers_neox import from_neox
from pretrace.step.plan import StepPlan

SIZES = ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PAPER = "Pythia paper (arXiv:2304.01373), section 2"
README = "EleutherAI/pythia, README"
NANOGPT = "karpathy/nanoGPT, config/train_gpt2.py"
NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def read(where):
    return Source(kind="read", where=where)


def declared(where):
    return Source(kind="declared", where=where)


def assumed(why):
    return Source(kind="assumed", where=why)


def source(path):
    return {"path": path, "format": "bin_idx", "weight": None, "content": ""}


# ---------------------------------------------------------------- Pythia


def pythia(configs, size, deduped):
    """Pythia of one size: the model from the published config.json, the step from the published NeoX configuration."""
    name = f"pythia-{size}" + ("-deduped" if deduped else "")
    yml = f"gpt-neox/pythia-{neox_name(size)}.yml"
    values = {k.replace("-", "_"): v for k, v in yaml.safe_load((configs / yml).read_text()).items()}
    hf = f"hf/pythia-{size}/config.json"
    model = spec_of(json.loads((configs / hf).read_text()), hf).model_copy(
        update={"init": InitSpec(kind="neox", std=0.0), "dropout": DropoutSpec(embed=0.0, attention=0.0, residual=0.0)}
    )
    world_size = 1024 // values["train_micro_batch_size_per_gpu"] // values.get("gradient_accumulation_steps", 1)
    plan = from_neox(values, world_size, {}, version="v1.0")
    edition = "pile-deduped" if deduped else "pile-standard"
    data = build(DataSpec, {
        "sources": [source(f"data/{edition}-pythia-preshuffled/document")], "seq_len": values["seq_length"],
        "order": {"family": "preshuffled"}, "documents": NO_RULES,
    }, where="recipes/generate.py")  # fmt: skip
    sources = {
        "model": read(f"{hf}; initial values of {yml}: init_method, output_layer_init_method"),
        "model.dropout": read(f"{yml}: hidden_dropout, attention_dropout"),
        "model.init": read(f"{yml}: init_method small_init, output_layer_init_method wang_init"),
        "data": declared(f"{README}: the preshuffled tokens, sample i of the file is sample i of training (2,049 tokens each)"),
        "data.documents": read("GPT-NeoX v1.0: no reset of attention or positions at documents' ends, no masking"),
        "steps": read(f"{yml}: train_iters"),
        "seeds.init": assumed("the published step-0 weights are the start; with `start` this seed is not used"),
        "seeds.dropout": assumed("nothing is dropped"),
        "checkpoints": read(f"{yml}: extra_save_iters, checkpoint_factor; published in float16"),
    }  # fmt: skip
    sources |= {f"step.{key}" if key else "step": value for key, value in plan.sources.items()}
    for key in ("step.kernels.loss_rows", "step.kernels.recompute"):
        sources[key] = assumed("the plain arithmetic")
    for key in ("step.world_size", "step.grad_accum_steps"):
        sources[key] = Source(
            kind="declared", where=f"1,024 sequences an update ({PAPER}) over {yml}: micro-batch, gas"
        )
    return Recipe(
        name=name, model=model, data=data, step=plan.model_copy(update={"sources": {}}), steps=values["train_iters"],
        seeds=Seeds(init=1234, dropout=1234), sources=sources,
        checkpoints=CheckpointSpec(at=STEPS, every=1000, dtype="float16", keep_states=2, asynchronous=True),
    )  # fmt: skip


def neox_name(size):
    return size.upper().replace(".", "-")


# ---------------------------------------------------------------- GPT-2


def gpt2_124m(corpus):
    """GPT-2 124M on rows of 512 tokens, half a million tokens an update."""
    model = gpt2(vocab_size=50304, max_seq_len=1024, n_layers=12, d_model=768, n_heads=12)
    data = build(DataSpec, {
        "sources": [source(f"data/{corpus}/train")], "seq_len": 512,
        "order": {"family": "stream", "epochs": 1, "document_seed": 1337, "sample_seed": 1337, "mix_epochs": False},
        "documents": NO_RULES,
    }, where="recipes/generate.py")  # fmt: skip
    step = plan(world_size=8, gas=8, micro_batch=16, peak=5e-4, warmup=700, steps=19_000, compute="bfloat16")
    sources = {
        "model": read("openai/gpt-2 and transformers' GPT2Config; sizes of GPT-2 small"),
        "model.vocab_size": read("karpathy/nanoGPT, train.py: 50,257 padded to a multiple of 64"),
        "model.dropout": read(f"{NANOGPT}: pretraining without dropout"),
        "data": declared("documents wrapped into rows of 256 to 512 tokens; 512 here"),
        "step.schedule.peak": declared("AdamW at 5e-4 with 500k tokens an update"),
        "step.schedule": declared("linear warm-up over 700 updates, cosine to a tenth over 10 billion tokens"),
        "step.optimizer": read(f"{NANOGPT} and model.py: betas 0.9, 0.95, weight decay 0.1 on matrices"),
        "step.clip": read(f"{NANOGPT}: grad_clip 1.0"),
        "step.world_size": declared("8 ranks x 8 micro-steps x 16 rows x 512 tokens = 524,288 tokens an update"),
        "step": declared("plain DDP's rule in bf16 autocast with a float32 reduction (allenai/OLMo#514)"),
        "steps": declared("10 billion tokens / 524,288"),
        "seeds": declared("karpathy/nanoGPT, train.py: 1337"),
        "checkpoints": declared("as Pythia's"),
    }  # fmt: skip
    return Recipe(
        name=f"gpt2-124m-{corpus}", model=model, data=data, step=step, steps=19_000, seeds=Seeds(init=1337, dropout=1337),
        checkpoints=CheckpointSpec(at=STEPS, every=1000, dtype="float32", keep_states=2, asynchronous=True), sources=sources,
    )  # fmt: skip


def plan(*, world_size, gas, micro_batch, peak, warmup, steps, compute):
    return build(StepPlan, {
        "world_size": world_size, "grad_accum_steps": gas, "micro_batch": micro_batch, "accum_dtype": "float32",
        "reduce_dtype": "float32",
        "loss": {"denominator": "global_tokens", "count": "after_shift", "divide": "loss", "logits_dtype": "float32",
                 "z_loss": 0.0, "z_loss_on": "counted"},
        "reduction": {"collective": "all_reduce", "order": {"kind": "tree", "sum_dtype": "wire"}, "buckets": {"kind": "whole"},
                      "scaling": [], "scaling_first": []},
        "loss_scale": {"kind": "none"},
        "clip": {"max_norm": 1.0, "scope": "global", "norm": "tensors", "rule": "torch", "eps": 1e-6},
        "optimizer": {"kind": "adamw", "kernel": "torch_foreach", "betas": [0.9, 0.95], "eps": 1e-8, "eps_place": "corrected",
                      "bias_correction": True, "decay_place": "before",
                      "groups": [{"params": ["*"], "ndim": "matrix", "weight_decay": 0.1, "lr_scale": 1.0},
                                 {"params": ["*"], "ndim": "any", "weight_decay": 0.0, "lr_scale": 1.0}]},
        "schedule": {"kind": "nanogpt", "peak": peak, "floor": peak / 10, "warmup_steps": warmup, "decay_steps": steps,
                     "warmup_divisor": "warmup_plus_one"},
        "kernels": {"param_dtype": "float32", "compute_dtype": compute, "mixed": "autocast", "attention": "any",
                    "threads": None, "compile": False, "deterministic": False, "loss_rows": 512},
    }, where="recipes/generate.py")  # fmt: skip


# ---------------------------------------------------------------- a minute on one core


def tiny(name, make):
    """A decoder of a family's shape on the embedded books, 512 updates of 1,024 tokens."""
    model = make(vocab_size=1024, max_seq_len=64, n_layers=3, d_model=96, n_heads=4)
    order = {"family": "stream", "epochs": 4, "document_seed": 1, "sample_seed": 2, "mix_epochs": False}
    rows = {"seq_len": 64, "documents": NO_RULES}
    held_out = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": False}
    data = build(
        DataSpec, {**rows, "sources": [source("data/tiny/train")], "order": order}, where="recipes/generate.py"
    )
    step = plan(world_size=2, gas=1, micro_batch=8, peak=3e-3, warmup=20, steps=512, compute="float32")
    evaluation = {
        "every": 128, "data": {**rows, "sources": [source("data/tiny/held_out")], "order": held_out}, "n_samples": 64,
        "micro_batch": 16, "target": None,
    }  # fmt: skip
    return build(Recipe, {
        "name": f"{name}-tiny", "model": model, "data": data, "step": step, "steps": 512, "seeds": {"init": 1, "dropout": 1},
        "checkpoints": {"at": STEPS, "every": 0, "dtype": "float32", "keep_states": 2}, "evaluation": evaluation,
        "sources": {
            "model": declared(f"the shape of {name}, small enough for a minute on one core"),
            "data": declared("the embedded books, written by recipes/prepare_tiny.py"),
            "step": declared("two virtual ranks of 8 rows of 64 tokens: 1,024 tokens an update"),
            "evaluation": declared("every tenth chapter is held out"), "steps": declared("to the last of Pythia's early steps"),
            "seeds": declared("any"), "checkpoints": read("as Pythia's early steps"),
        },
    }, where="recipes/generate.py")  # fmt: skip


def recipes(configs):
    """Every recipe of this folder."""
    for size in SIZES:
        yield pythia(configs, size, deduped=False)
        if size not in ("14m", "31m"):
            yield pythia(configs, size, deduped=True)
    for corpus in ("fineweb-edu", "openwebtext"):
        yield gpt2_124m(corpus)
    yield tiny("gpt2", gpt2)
    yield tiny("pythia", gpt_neox)


def main(configs, out):
    for recipe in recipes(configs):
        (out / f"{recipe.name}.yaml").write_text(to_yaml(recipe))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent))
