"""Builders shared by the tests of this folder."""

import numpy as np

from pretrace.checkpoint import ArraysView, read_all, relabel
from pretrace.checkpoint.tables import ALL
from pretrace.convert.request import Request
from pretrace.convert.run import Settings
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.model.spec import tensor_shapes

SIZES = {"vocab_size": 24, "max_seq_len": 12, "n_layers": 3, "d_model": 32, "n_heads": 4}
SPECS = {
    "gpt2": gpt2(**SIZES),
    "gpt_neox": gpt_neox(**SIZES),
    "llama": llama(**SIZES, n_kv_heads=2, d_ff=40),
}
LLAMA_APART = llama(**SIZES, n_kv_heads=4, d_ff=40)
TOKENS = np.random.default_rng(1).integers(0, 24, (2, 12))
# Megatron's layouts are read, never written; GPT-NeoX models with grouped queries are of no published family.
READ = [t for t in ALL if not t.name.startswith("megatron") and not (t.grouped and t.family == "gpt_neox")]

MEGATRON = [t for t in ALL if t.name.startswith("megatron")]
VERSIONS = {
    "megatron": 3.0,
    "megatron, version 1": 1.0,
    "megatron, version 0": 0.0,
}  # what the legacy layouts' files say


def spec_for(table):
    """A model that the layout holds: NeoX lays Llama's heads out by whether queries share keys."""
    return LLAMA_APART if table.family == "llama" and table.grouped is False else SPECS[table.family]


def weights(spec, seed=0):
    """Values large enough that attention looks somewhere: a wrong lane order moves the logits."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in tensor_shapes(spec).items()}


def stored(spec, table, ours):
    """The weights in memory, in the layout of a table."""
    view = relabel(ArraysView(ours), table, spec)
    about = {"checkpoint_version": VERSIONS[table.name]} if table.name in VERSIONS else {}
    return ArraysView({name: read_all(view, name) for name in view.names()}, metadata=about)


def request(to, **changes):
    """A request with every choice neutral but `changes`."""
    neutral = {"dtype": "keep", "shard_bytes": None, "tensor_parallel": 1, "data_parallel": 1, "linear1": True, "ocdbt": True,
               "scan_axis": 1, "fused_qkv": True, "vocab_rows": None, "state": "keep", "adam": None}  # fmt: skip
    return Request(to=to, **neutral | changes)


def settings(**changes):
    """Two threads, the usual probe, everything proved."""
    return Settings(**{"threads": 2, "probe": "", "logits": True, "damaged": False, "model": None} | changes)
