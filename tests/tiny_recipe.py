"""A complete recipe small enough for tests: 40 made documents, a NeoX-shaped decoder of 8,000 parameters, W = 2 virtual ranks."""

import numpy as np

from pretrace.data.tokenfile import write_pair
from pretrace.recipe.spec import Recipe
from pretrace.spec import build

VOCAB = 64


def documents(n=40, seed=0):
    """Token ids of `n` documents with a pattern that can be learned; each ends with id 0."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        start, stride = rng.integers(1, VOCAB), rng.integers(1, 4)
        length = int(rng.integers(20, 60))
        out.append(np.append((start + stride * np.arange(length)) % (VOCAB - 1) + 1, 0).astype(np.int64))
    return out


STEP = {
    "world_size": 2,
    "grad_accum_steps": 1,
    "micro_batch": 2,
    "accum_dtype": "float32",
    "reduce_dtype": "float32",
    "loss": {
        "denominator": "global_tokens", "count": "after_shift", "divide": "loss", "logits_dtype": "float32",
        "z_loss": 0.0, "z_loss_on": "counted",
    },
    "reduction": {
        "collective": "all_reduce", "order": {"kind": "tree", "sum_dtype": "wire"}, "buckets": {"kind": "whole"},
        "scaling": [], "scaling_first": [],
    },
    "loss_scale": {"kind": "none"},
    "clip": {"max_norm": 1.0, "scope": "global", "norm": "tensors", "rule": "torch", "eps": 1e-6},
    "optimizer": {
        "kind": "adamw", "kernel": "torch_foreach", "betas": [0.9, 0.95], "eps": 1e-8, "eps_place": "corrected",
        "bias_correction": True, "decay_place": "before",
        "groups": [{"params": ["*"], "ndim": "any", "weight_decay": 0.01, "lr_scale": 1.0}],
    },
    "schedule": {"kind": "constant", "peak": 1e-2, "warmup_steps": 0},
    "kernels": {
        "param_dtype": "float32", "compute_dtype": "float32", "mixed": "autocast", "attention": "any", "threads": 1,
        "compile": False, "deterministic": False,
    },
}  # fmt: skip


def recipe_data(prefix, **changes):
    """The recipe as plain data; its token file is written at `prefix` (a path without ending) if it is not there."""
    if not prefix.with_suffix(".idx").exists():
        write_pair(prefix, documents(), "uint16")
    return {
        "name": "tiny",
        "model": {
            "family": "gpt_neox", "vocab_size": VOCAB, "max_seq_len": 16, "n_layers": 1, "d_model": 16, "n_heads": 2,
            "n_kv_heads": 2, "d_ff": 64, "position": "rotary", "rotary_pct": 0.25, "rotary_base": 10000.0,
            "norm": "layernorm", "norm_eps": 1e-5, "norm_place": "pre", "residual": "parallel", "activation": "gelu",
            "gated": False, "bias": True, "tied_head": False,
            "dropout": {"embed": 0.0, "attention": 0.0, "residual": 0.0}, "init": {"kind": "neox", "std": 0.0},
        },
        "data": {
            "sources": [{"path": str(prefix), "format": "bin_idx", "weight": None, "content": "tiny"}],
            "seq_len": 16,
            "order": {"family": "neox", "version": "v1.0", "num_samples": 300, "seed": 1234, "split": None,
                      "part": "train", "surplus": False},
            "documents": {"eod_id": None, "mask_after_eod": False, "separate_attention": False,
                          "restart_positions": False},
        },
        "step": STEP,
        "steps": 12,
        "seeds": {"init": 1, "dropout": 2},
        "checkpoints": {"at": [0, 1, 2, 4, 8], "every": 0, "dtype": "float32", "keep_states": 2},
    } | changes  # fmt: skip


def recipe(folder, **edits):
    """The tiny recipe with dotted keys replaced; `__` stands for the dot. Its token file lies in `folder`."""
    whole = build(Recipe, recipe_data(folder / "tokens"), where="tests/tiny_recipe.py")
    return whole.with_values({key.replace("__", "."): value for key, value in edits.items()})
