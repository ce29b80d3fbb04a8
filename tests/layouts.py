"""Tiny models of every family for the tests of writers, and the laws that every planned file obeys."""

import numpy as np

from pretrace.checkpoint import ArraysView
from pretrace.checkpoint.layout import Crc
from pretrace.model.spec import ModelSpec, tensor_shapes

# head_dim 16: its square root is a power of two, so MaxText's scaling is exact.
SIZES = {"vocab_size": 12, "max_seq_len": 8, "n_layers": 3, "d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 256,
         "norm_eps": 1e-5, "norm_place": "pre", "residual": "sequential",
         "dropout": {"embed": 0, "attention": 0, "residual": 0}, "init": {"kind": "normal", "std": 0.02}}  # fmt: skip
LEARNED = {"position": "learned", "rotary_pct": 0.0, "rotary_base": 0.0, "norm": "layernorm", "activation": "gelu_tanh",
           "gated": False, "bias": True, "tied_head": True}  # fmt: skip
FAMILIES = {
    "gpt2": LEARNED,
    "gpt_neox": LEARNED | {"position": "rotary", "rotary_pct": 0.5, "rotary_base": 1e4, "activation": "gelu",
                           "residual": "parallel", "tied_head": False},
    "llama": LEARNED | {"position": "rotary", "rotary_pct": 1.0, "rotary_base": 1e4, "norm": "rmsnorm", "activation": "silu",
                        "gated": True, "bias": False, "tied_head": False, "n_kv_heads": 2, "d_ff": 96},
}  # fmt: skip


def tiny_spec(family, **changes):
    """A model of three layers."""
    return ModelSpec.model_validate(SIZES | {"family": family} | FAMILIES[family] | changes)


def tiny_weights(spec, seed=0):
    """fp32 weights: multiples of 2**-10 between 0.5 and 1.5, so adding 1 and powers of two are exact."""
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(512, 1536, s) / 1024).astype(np.float32) for name, s in tensor_shapes(spec).items()}


ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def adam_state(spec):
    """Moments and masters under canonical names: small multiples of powers of two."""
    made = {}
    for seed, kind in enumerate(("exp_avg", "exp_avg_sq", "fp32"), 1):
        for name, array in tiny_weights(spec, seed).items():
            made[f"optimizer.{kind}.{name}"] = array if kind == "fp32" else array / 256
    return made


def stateful(spec, **metadata):
    """Weights with their Adam state after 5 updates."""
    about = {"step": 5, "optimizer_step": 5, "adam": ADAM} | metadata
    state = {name: array for name, array in adam_state(spec).items() if not name.startswith("optimizer.fp32")}
    return ArraysView(tiny_weights(spec) | state, metadata=about)


def covers(file):
    """Whether the pieces follow each other from byte 0 on, and checksums cover no checksum."""
    at = 0
    for piece in file.pieces:
        if piece.offset != at or not piece.size_bytes:
            return False
        at += piece.size_bytes
    crcs = [piece for piece in file.pieces if isinstance(piece, Crc)]
    over = any(a.begin < b.offset + 4 and b.offset < a.end for a in crcs for b in crcs)
    return at == file.size_bytes and not over
