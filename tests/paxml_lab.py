"""A Paxml-style GPT-3 run of 200 updates, written by hand as Paxml leaves it at step 4000."""

import json

import numpy as np

from pretrace.batch import Batch
from pretrace.model.decoder import Decoder
from pretrace.model.init import initialise
from pretrace.model.presets import gpt2
from pretrace.model.state import snapshot
from pretrace.step.execute import execute
from pretrace.step.state import begin
from tiny import plan

SPEC = gpt2(vocab_size=48, max_seq_len=16, n_layers=3, d_model=32, n_heads=4)
L, D, H, d = 3, 32, 4, 8
PLAN = plan(world_size=1, micro_batch=4, schedule={"kind": "constant", "peak": 3e-3, "warmup_steps": 0})


def read(positions):
    """Sample i counts up from i: a language that can be learned."""
    windows = (np.array([[i] for i in positions]) + np.arange(17)) % 48
    return Batch(windows[:, :-1], windows[:, 1:])


def paxml_variables(of):
    """Paxml's variables below `params.lm`, from a function of our name; scales as their distance from 1 where `of.scale`."""

    def stack(name):
        return np.stack([of(f"blocks.{i}.{name}") for i in range(L)])

    def one(array):
        return array - np.float32(1) if of.weights else array

    def heads(kind):  # q, k, v of a layer: [out, in] -> [in, H, d]
        return np.stack([np.stack([of(f"blocks.{i}.attn.{p}.{kind}") for p in "qkv"]) for i in range(L)])

    top = "transformer.repeat.sub.x_layers_0."
    return {
        "softmax.logits_ffn.linear.w": of("embed.weight").T,
        "position_emb.emb_var": of("pos_embed.weight"),
        "final_ln.scale": one(of("final_norm.weight")), "final_ln.bias": of("final_norm.bias"),
        top + "layer_norm.scale": one(stack("norm1.weight")), top + "layer_norm.bias": stack("norm1.bias"),
        top + "self_attention.combined_qkv.w": heads("weight").transpose(0, 1, 3, 2).reshape(L, 3, D, H, d),
        top + "self_attention.combined_qkv.b": heads("bias").reshape(L, 3, H, d),
        top + "self_attention.post.w": stack("attn.out.weight").reshape(L, D, H, d),
        top + "self_attention.post.b": stack("attn.out.bias"),
        top + "ff_layer.layer_norm.scale": one(stack("norm2.weight")), top + "ff_layer.layer_norm.bias": stack("norm2.bias"),
        top + "ff_layer.ffn_layer1.linear.w": stack("mlp.up.weight").transpose(0, 2, 1),
        top + "ff_layer.ffn_layer1.bias.b": stack("mlp.up.bias"),
        top + "ff_layer.ffn_layer2.linear.w": stack("mlp.down.weight").transpose(0, 2, 1),
        top + "ff_layer.ffn_layer2.bias.b": stack("mlp.down.bias"),
    }  # fmt: skip


class Of:
    """Arrays by our name, and whether they are weights (whose norm scales are stored as a distance) or moments."""

    def __init__(self, arrays, weights):
        self.arrays, self.weights = arrays, weights

    def __call__(self, name):
        return self.arrays[name]


def write_zarr(folder, name, array):
    """A variable as Paxml leaves it: a folder of zarr version 2, one chunk."""
    array = np.ascontiguousarray(array)
    place = folder / name
    place.mkdir(parents=True)
    about = {"chunks": list(array.shape), "compressor": None, "dtype": array.dtype.str, "fill_value": None, "filters": None,
             "order": "C", "shape": list(array.shape), "zarr_format": 2}  # fmt: skip
    (place / ".zarray").write_text(json.dumps(about))
    (place / (".".join("0" * array.ndim) or "0")).write_bytes(array.tobytes())


def write_paxml(folder, state):
    """mdl_vars, the moments (p#L#i-1_2 for what is scanned, no_prefix_2 for the rest), count and step."""
    weights = Of(snapshot(state.model), True)
    for name, array in paxml_variables(weights).items():
        write_zarr(folder, f"mdl_vars.params.lm.{name}", array)
    for short, slot in (("m", "exp_avg"), ("v", "exp_avg_sq")):
        moments = Of({n: t.numpy() for n, t in state.optimizer.tensors[slot].items()}, False)
        for name, array in paxml_variables(moments).items():
            prefix = f"p#{L}#i-1_2" if "x_layers_0" in name else "no_prefix_2"
            write_zarr(folder, f"opt_states_0.{prefix}.{short}.params.lm.{name}", array)
    write_zarr(folder, "opt_states_0.no_prefix_0.count", np.array(4000, np.int32))
    write_zarr(folder, "step", np.array(4000, np.int32))


def run_at_4000():
    """A short run whose counters say that 4000 updates are behind it."""
    model = Decoder(SPEC)
    initialise(model, SPEC, 0)
    state = begin(PLAN, model)
    for step in range(200):
        execute(PLAN, state, read, step=step)
    state.optimizer.step = 4000
    return state
