"""Writes pairs of synthetic bf16 checkpoints of any size, block by block: what the speed benchmarks read.

python benchmarks/checkpoint_pairs.py FOLDER GIGABYTES plain|sparse
"""

import json
import sys
from pathlib import Path

import numpy as np

BLOCK = 1 << 22


def bits(values):
    """float32 -> bfloat16 bits, truncated (the rounding does not matter here)."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")


def shapes(gigabytes, width=1536):
    """Names and shapes of a GPT-NeoX-like model of about that size in bfloat16."""
    vocabulary = 50_304 if gigabytes >= 0.5 else 4_096
    d = width if gigabytes >= 0.5 else 512
    found = {"gpt_neox.embed_in.weight": (vocabulary, d)}
    left, i = gigabytes * 1e9 / 2 - 2 * vocabulary * d, 0
    while left > 0 or i == 0:
        p = f"gpt_neox.layers.{i}."
        layer = {
            p + "attention.query_key_value.weight": (3 * d, d), p + "attention.query_key_value.bias": (3 * d,),
            p + "attention.dense.weight": (d, d), p + "attention.dense.bias": (d,),
            p + "mlp.dense_h_to_4h.weight": (4 * d, d), p + "mlp.dense_h_to_4h.bias": (4 * d,),
            p + "mlp.dense_4h_to_h.weight": (d, 4 * d), p + "mlp.dense_4h_to_h.bias": (d,),
        }  # fmt: skip
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layer |= {p + norm + ".weight": (d,), p + norm + ".bias": (d,)}
        found |= layer
        left -= sum(int(np.prod(s)) for s in layer.values())
        i += 1
    d_last = {
        "gpt_neox.final_layer_norm.weight": (d,),
        "gpt_neox.final_layer_norm.bias": (d,),
        "embed_out.weight": (vocabulary, d),
    }
    return found | d_last, i, d, vocabulary


def header(tensors):
    entries, at = {}, 0
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape))
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def config(layers, width, vocabulary):
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": width // 64, "intermediate_size": 4 * width, "vocab_size": vocabulary, "rotary_pct": 0.25,
        "rotary_emb_base": 10000, "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "hidden_act": "gelu",
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "use_parallel_residual": True, "initializer_range": 0.02,
    }  # fmt: skip


def write_pair(folder, gigabytes, shards=5):
    """Two checkpoints A and B = A + 10% noise, sharded; returns their folders and the bytes of one."""
    tensors, layers, width, vocabulary = shapes(gigabytes)
    names = list(tensors)
    per = -(-len(names) // shards)
    folders = [Path(folder) / which for which in "ab"]
    weight_map, total = {}, 0
    rng = np.random.default_rng(7)
    # Drawing gigabytes of normal numbers takes longer than any comparison: one long draw is read from shifting places.
    pool, noise = rng.normal(0, 0.02, BLOCK + 65_536), rng.normal(0, 0.002, BLOCK + 65_536)
    for one in folders:
        one.mkdir(parents=True, exist_ok=True)
        (one / "config.json").write_text(json.dumps(config(layers, width, vocabulary)))
    for k in range(0, len(names), per):
        part = {name: tensors[name] for name in names[k : k + per]}
        file = f"model-{k // per + 1:05d}-of-{-(-len(names) // per):05d}.safetensors"
        head, size = header(part)
        total += size
        weight_map |= dict.fromkeys(part, file)
        with open(folders[0] / file, "wb") as a, open(folders[1] / file, "wb") as b:
            a.write(head)
            b.write(head)
            for name, shape in part.items():
                one = 1.0 if "norm.weight" in name else 0.0
                left = int(np.prod(shape))
                while left:
                    n, shift = min(left, BLOCK), int(rng.integers(0, 65_536))
                    x = pool[shift : shift + n] + one
                    a.write(bits(x).tobytes())
                    b.write(bits(x + noise[shift : shift + n]).tobytes())
                    left -= n
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    for one in folders:
        (one / "model.safetensors.index.json").write_text(index)
    return folders[0], folders[1], total


def write_sparse_pair(folder, gigabytes):
    """Two checkpoints whose data are holes of the file system: any size in a few kilobytes of disk."""
    made = []
    width = 8_192
    rows = int(gigabytes * 1e9 / 2 / width / 8)
    tensors = {f"blocks.{i}.mlp.up.weight": (rows, width) for i in range(8)}
    head, size = header(tensors)
    for which in "ab":
        path = Path(folder) / which
        path.mkdir(parents=True, exist_ok=True)
        with open(path / "model.safetensors", "wb") as file:
            file.write(head)
            file.truncate(len(head) + size)
        made.append(path)
    return made[0], made[1], size


if __name__ == "__main__":
    # A process of its own: the parent that measures stays small (Linux counts a parent's memory as its child's peak).
    where, size, kind = sys.argv[1:4]
    write = write_sparse_pair if kind == "sparse" else write_pair
    print(write(where, float(size))[2])
