"""Tiny inputs that several tests share: a small GPT, its batches, and a complete step plan to change one value of."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pretrace.batch import IGNORE_INDEX, Batch
from pretrace.spec import build
from pretrace.step.plan import StepPlan

VOCAB, SEQ = 64, 16


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A two-layer GPT of about 30,000 parameters."""

    def __init__(self, d=32, layers=2, heads=2, vocab=VOCAB, seq=SEQ):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, tokens, position_ids=None, segments=None):
        places = torch.arange(tokens.shape[1]) if position_ids is None else position_ids
        x = self.tok(tokens) + self.pos(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(seed=0, **sizes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Gpt(**sizes)


def read(positions, *, vocab=VOCAB, seq=SEQ, ragged=False):
    """Position i of a made-up data set is a function of i; ragged sequences end in ignored labels."""
    tokens, labels = [], []
    for i in positions:
        rng = np.random.default_rng(1000 + i)
        window = rng.integers(0, vocab, seq + 1)
        keep = rng.integers(1, seq + 1) if ragged else seq
        tokens.append(window[:-1])
        labels.append(np.where(np.arange(seq) < keep, window[1:], IGNORE_INDEX))
    return Batch(np.stack(tokens), np.stack(labels))


def read_ragged(positions):
    return read(positions, ragged=True)


MUL = {"where": "before_cast", "op": "mul", "by": "world_size"}
DIV = {**MUL, "op": "div"}
RING = {"kind": "gloo_ring", "sum_dtype": "wire", "max_segment_bytes": 1 << 20}
TREE = {"kind": "tree", "sum_dtype": "wire"}
DIRECT = {"kind": "direct", "sum_dtype": "wire"}
EXACT = {
    "reduction.order": {"kind": "exact", "exponent": 56},
    "reduction.scaling": [],
    "reduction.scaling_first": [],
}
PLAN = {
    "world_size": 2,
    "grad_accum_steps": 1,
    "micro_batch": 2,
    "accum_dtype": "float32",
    "reduce_dtype": "float32",
    "loss": {"denominator": "micro_mean", "count": "after_shift", "divide": "loss", "logits_dtype": "float32",
             "z_loss": 0.0, "z_loss_on": "counted"},
    "reduction": {"collective": "all_reduce", "order": RING, "buckets": {"kind": "whole"}, "scaling": [MUL],
                  "scaling_first": [MUL]},
    "loss_scale": {"kind": "none"},
    "clip": {"max_norm": 1.0, "scope": "global", "norm": "tensors", "rule": "torch", "eps": 1e-6},
    "optimizer": {"kind": "adamw", "kernel": "torch_foreach", "betas": [0.9, 0.95], "eps": 1e-8,
                  "eps_place": "corrected", "bias_correction": True, "decay_place": "before",
                  "groups": [{"params": ["*"], "ndim": "any", "weight_decay": 0.01, "lr_scale": 1.0}]},
    "schedule": {"kind": "constant", "peak": 3e-3, "warmup_steps": 0},
    "kernels": {"param_dtype": "float32", "compute_dtype": "float32", "mixed": "autocast", "attention": "any",
                "threads": 1, "compile": False, "deterministic": False},
}  # fmt: skip


def plan(**changes):
    """The tiny plan with values under dotted keys replaced; `__` stands for the dot."""
    return build(StepPlan, PLAN, where="tests/tiny.py").with_({k.replace("__", "."): v for k, v in changes.items()})


def flat(model):
    """All parameters as one vector of bit patterns."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32)


# TFRecord files, written by hand (tests/data).


def _varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def _message(number, payload):
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def tf_example(**features):
    """A tf.train.Example of lists of bytes or of non-negative integers."""
    entries = b""
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            feature = _message(1, b"".join(_message(1, v) for v in values))
        else:
            feature = _message(3, _message(1, b"".join(map(_varint, values))))
        entries += _message(1, _message(1, name.encode()) + _message(2, feature))
    return _message(1, entries)


def plain_crc32c(data):
    """The Castagnoli checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tf_record(data):
    """One framed record of a TFRecord file."""

    def masked(part):
        crc = plain_crc32c(part)
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    length = len(data).to_bytes(8, "little")
    return length + masked(length) + data + masked(data)
