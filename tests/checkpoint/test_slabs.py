"""Slabs: a transposed tensor is gathered once however small the blocks, by several threads too."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pretrace.checkpoint import ArraysView, canonical, slabs
from pretrace.checkpoint.slabs import scattered
from pretrace.checkpoint.tables import HF


def test_small_blocks_of_a_transposed_tensor_read_its_source_once_a_slab(monkeypatch):
    monkeypatch.setattr(slabs, "SLAB_BYTES", 4 * 4000)
    source = np.arange(100 * 80, dtype=np.float32).reshape(100, 80)
    base = ArraysView({"h.0.mlp.c_fc.weight": source})
    read = []
    monkeypatch.setattr(
        base,
        "read",
        lambda name, start, stop, out=None, real=base.read: read.append(stop - start) or real(name, start, stop, out),
    )
    view = canonical(base, table=HF["gpt2"])
    parts = [view.read("blocks.0.mlp.up.weight", s, s + 100) for s in range(0, 8000, 100)]
    assert (np.concatenate(parts).reshape(80, 100) == source.T).all()
    assert sum(read) <= 2 * source.size  # two slabs of 4,000 elements, each over the whole source


def test_threads_get_the_bits_of_one(monkeypatch):
    monkeypatch.setattr(slabs, "SLAB_BYTES", 4 * 1000)
    source = np.arange(100 * 80, dtype=np.float32).reshape(100, 80)
    view = canonical(ArraysView({"h.0.mlp.c_fc.weight": source}), table=HF["gpt2"])
    starts = list(range(0, 7900, 130))
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda s: view.read("blocks.0.mlp.up.weight", s, s + 130).tolist(), starts))
    assert parts == [source.T.reshape(-1)[s : s + 130].tolist() for s in starts]


def test_long_runs_are_not_scattered():
    assert not scattered((3, 4096), (9000, 1))
    assert not scattered((4096,), (1,))
    assert scattered((3, 16), (99, 1))
    assert scattered((4096,), (2,))
