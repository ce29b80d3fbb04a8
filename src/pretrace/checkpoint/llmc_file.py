"""Flat binary models: llm.c's model_*.bin and llama2.c's .bin. The header determines every size.

llm.c: 256 int32: 20240326, version (3 fp32, 5 bf16), max_seq_len, vocab, layers, heads, channels, padded vocab; then the
parameters of GPT-2, each for all layers, weights [out, in]. (llm.c, train_gpt2.cu, gpt2_write_to_checkpoint.)
llama2.c: version 1 has a 256-byte header "ak42" (version, dim, hidden, layers, heads, kv heads, vocab, max_seq_len, shared
classifier); version 0 starts with the seven int32 and marks an own classifier by a negative vocab. fp32. (llama2.c, export.py.)
Tensors are listed under nanoGPT's and Meta's names: they are the same weights.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pretrace.checkpoint.faults import DamagedFile, said
from pretrace.checkpoint.sources import Source, read_bytes
from pretrace.checkpoint.stored import Place, StoredView
from pretrace.checkpoint.view import StateView, TensorInfo
from pretrace.dtypes import dtype

LLMC_MAGIC, STATE_MAGIC, LLAMA2C_MAGIC = 20240326, 20240527, 0x616B3432
HEADER_BYTES = 1024
LLMC_DTYPES = {3: "float32", 5: "bfloat16"}
Tensors = dict[str, tuple[TensorInfo, Place]]
Shapes = Iterator[tuple[str, tuple[int, ...], int]]  # name with {i}, shape of one layer, layers (0: not by layer)


def is_llmc(head: bytes) -> bool:
    """Whether the first bytes are those of an llm.c model."""
    return len(head) >= 8 and head[:4] == LLMC_MAGIC.to_bytes(4, "little")


def is_llmc_state(head: bytes) -> bool:
    """Whether the first bytes are those of an llm.c optimizer state."""
    return head[:4] == STATE_MAGIC.to_bytes(4, "little")


def is_llama2c(head: bytes, size: int) -> bool:
    """Whether the file is one of llama2.c: by its magic, or (version 0 has none) by sizes that fit exactly."""
    if head[:4] == LLAMA2C_MAGIC.to_bytes(4, "little"):
        return True
    if len(head) < 28:
        return False
    dim, hidden, layers, heads, kv, vocab, seq = struct.unpack_from("<7i", head)
    sane = all(0 < n < 1 << 24 for n in (dim, hidden, layers, heads, kv, abs(vocab), seq))
    if not sane or dim % heads or layers > 4096 or kv > heads:
        return False
    c = {
        "dim": dim,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv": kv,
        "vocab": abs(vocab),
        "seq": seq,
        "shared": vocab > 0,
    }
    return size == 28 + 4 * sum(math.prod(shape) * max(1, n) for _, shape, n in _llama2c_v0(c))


def open_llmc(source: Source, states: Sequence[Source] = ()) -> StateView:
    """A view of an llm.c model, with `optimizer.*` out of the state file of its one process.

    Raises
    ------
    DamagedFile
        Code `size` if the file is not as long as its header says; `header-...` if the header is not sound.
    """
    head = struct.unpack("<8i", read_bytes(source, 0, 32))
    _, version, seq, vocab, layers, heads, d, padded = head
    if version not in LLMC_DTYPES:
        raise DamagedFile(
            "header-version", f"llm.c version {version}", f"{source.name} header[1]", "known are 3 (fp32) and 5 (bf16)"
        )
    if min(seq, vocab, layers, heads, d) < 1 or padded < vocab or d % heads or layers > 4096:
        raise DamagedFile(
            "header-sizes",
            f"the header's sizes are not those of a model: {list(head[2:])}",
            f"{source.name} header",
            "fetch it again",
        )
    config = {
        "model_type": "gpt2",
        "n_positions": seq,
        "vocab_size": padded,
        "n_layer": layers,
        "n_head": heads,
        "n_embd": d,
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
    about = {"config": config, "vocab_rows_used": vocab}
    shapes = tuple(llmc_shapes(d, padded, seq, layers))
    where = f"{source.name} header[4]: {layers} layers"
    tensors = _exact(source, HEADER_BYTES, LLMC_DTYPES[version], iter(shapes), where)
    if len(states) > 1:
        what = f"the optimizer's state is cut over {len(states)} processes, which is not read"
        found = (
            said("files-optimizer", "warning", what, states[0].name, "save it from one process, or go on without it"),
        )
        return StoredView("llm.c", tensors, about, found)
    for state in states:
        held, step = _state(state, shapes)
        tensors |= held
        about |= {"step": step, "optimizer_step": step}
    return StoredView("llm.c", tensors, about)


def open_llama2c(source: Source) -> StateView:
    """A view of a llama2.c model.

    Raises
    ------
    DamagedFile
        As `open_llmc`.
    """
    head = read_bytes(source, 0, min(source.size, 256))
    modern = head[:4] == LLAMA2C_MAGIC.to_bytes(4, "little")
    if modern and (len(head) < 256 or struct.unpack_from("<i", head, 4)[0] != 1):
        raise DamagedFile(
            "header-version",
            "a quantised or unknown version of llama2.c",
            f"{source.name} header",
            "version 1 (fp32) is read",
        )
    dim, hidden, layers, heads, kv, vocab, seq = struct.unpack_from("<7i", head, 8 if modern else 0)
    shared = bool(head[36]) if modern else vocab > 0
    c = {
        "dim": dim,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv": kv,
        "vocab": abs(vocab),
        "seq": seq,
        "shared": shared,
    }
    if min(dim, hidden, layers, heads, kv, abs(vocab), seq) < 1 or dim % heads or layers > 4096:
        raise DamagedFile(
            "header-sizes",
            f"the header's sizes are not those of a model: {c}",
            f"{source.name} header",
            "fetch it again",
        )
    config = {
        "model_type": "llama",
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": abs(vocab),
        "max_position_embeddings": seq,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": shared,
        "rope_theta": 10000.0,
    }
    shapes = _llama2c_v1(c) if modern else _llama2c_v0(c)
    return _laid_out(
        "llama2.c",
        source,
        256 if modern else 28,
        "float32",
        shapes,
        {"config": config},
        f"{source.name} header: {layers} layers",
    )


def _state(source: Source, shapes: Sequence[tuple[str, tuple[int, ...], int]]) -> tuple[Tensors, int]:
    """m, v and masters of a state file, and its step. A shuffling data loader's state may follow."""
    head = struct.unpack("<12i", read_bytes(source, 0, 48))
    if head[1] != 1 or head[2] != 1:
        raise DamagedFile("header-version", f"an optimizer state of version {head[1]}, {head[2]} processes", source.name,
                          "version 1 of one process is read: move the file away to read the model")  # fmt: skip
    kinds = ("exp_avg", "exp_avg_sq") + ("fp32",) * bool(head[4])
    numel = sum(math.prod(shape) * max(1, n) for _, shape, n in shapes)
    expected = HEADER_BYTES + 4 * numel * len(kinds)
    if source.size < expected or (source.size > expected and not head[5]):
        raise DamagedFile("size", f"the state takes {expected:,} bytes, the file has {source.size:,}", source.name,
                          "the file is cut or belongs to another model: fetch it again", expected=expected,
                          present=source.size)  # fmt: skip
    tensors: Tensors = {}
    for k, kind in enumerate(kinds):
        held = _placed(source, HEADER_BYTES + 4 * numel * k, "float32", iter(shapes))
        tensors |= {f"optimizer.{kind}.{name}": (replace(info, name=f"optimizer.{kind}.{name}"), place)
                    for name, (info, place) in held.items()}  # fmt: skip
    return tensors, head[10]


def _laid_out(
    format: str, source: Source, at: int, kind: str, shapes: Shapes, about: dict[str, Any], where: str
) -> StateView:
    return StoredView(format, _exact(source, at, kind, shapes, where), about)


def _exact(source: Source, at: int, kind: str, shapes: Shapes, where: str) -> Tensors:
    """The tensors of a blob that has to end with the file."""
    listed = tuple(shapes)
    end = at + dtype(kind).itemsize * sum(math.prod(shape) * max(1, layers) for _, shape, layers in listed)
    if end != source.size:
        raise DamagedFile(
            "size",
            f"the header asks for {end:,} bytes, the file has {source.size:,}",
            where,
            "the header lies about the model or the file is cut: fetch it again",
            expected=end,
            present=source.size,
        )
    return _placed(source, at, kind, iter(listed))


def _placed(source: Source, at: int, kind: str, shapes: Shapes) -> Tensors:
    """The tensors of a blob that starts at byte `at`."""
    tensors: Tensors = {}
    for name, shape, layers in shapes:
        for i in range(max(1, layers)):
            info = TensorInfo(name.replace("{i}", str(i)), kind, shape, source.name)
            if not name.startswith("freq"):
                tensors[info.name] = (info, Place(source, at))
            at += info.size_bytes
    return tensors


def llmc_shapes(d: int, v: int, t: int, n: int) -> Shapes:
    """The parameters of llm.c in the order of the file, under nanoGPT's names."""
    h = "transformer.h.{i}."
    yield "transformer.wte.weight", (v, d), 0
    yield "transformer.wpe.weight", (t, d), 0
    for name, shape in (
        ("ln_1.weight", (d,)),
        ("ln_1.bias", (d,)),
        ("attn.c_attn.weight", (3 * d, d)),
        ("attn.c_attn.bias", (3 * d,)),
        ("attn.c_proj.weight", (d, d)),
        ("attn.c_proj.bias", (d,)),
        ("ln_2.weight", (d,)),
        ("ln_2.bias", (d,)),
        ("mlp.c_fc.weight", (4 * d, d)),
        ("mlp.c_fc.bias", (4 * d,)),
        ("mlp.c_proj.weight", (d, 4 * d)),
        ("mlp.c_proj.bias", (d,)),
    ):
        yield h + name, shape, n
    yield "transformer.ln_f.weight", (d,), 0
    yield "transformer.ln_f.bias", (d,), 0


def _llama2c_v1(c: dict[str, int]) -> Shapes:
    yield from _norms(c)
    yield "tok_embeddings.weight", (c["vocab"], c["dim"]), 0
    yield from _attention(c)
    yield from _feed_forward(c)
    if not c["shared"]:
        yield "output.weight", (c["vocab"], c["dim"]), 0


def _llama2c_v0(c: dict[str, int]) -> Shapes:
    n, d = c["layers"], c["dim"]
    yield "tok_embeddings.weight", (c["vocab"], d), 0
    yield "layers.{i}.attention_norm.weight", (d,), n
    yield from _attention(c)
    yield "layers.{i}.ffn_norm.weight", (d,), n
    yield from _feed_forward(c)
    yield "norm.weight", (d,), 0
    yield "freq_cos", (c["seq"], d // c["heads"] // 2), 0
    yield "freq_sin", (c["seq"], d // c["heads"] // 2), 0
    if not c["shared"]:
        yield "output.weight", (c["vocab"], d), 0


def _norms(c: dict[str, int]) -> Shapes:
    yield "layers.{i}.attention_norm.weight", (c["dim"],), c["layers"]
    yield "layers.{i}.ffn_norm.weight", (c["dim"],), c["layers"]
    yield "norm.weight", (c["dim"],), 0


def _attention(c: dict[str, int]) -> Shapes:
    d, kv, n = c["dim"], c["dim"] // c["heads"] * c["kv"], c["layers"]
    for name, rows in (("wq", d), ("wk", kv), ("wv", kv), ("wo", d)):
        yield f"layers.{{i}}.attention.{name}.weight", (rows, d), n


def _feed_forward(c: dict[str, int]) -> Shapes:
    d, f, n = c["dim"], c["hidden"], c["layers"]
    for name, shape in (("w1", (f, d)), ("w2", (d, f)), ("w3", (f, d))):
        yield f"layers.{{i}}.feed_forward.{name}.weight", shape, n
