"""Orders of OLMo, llm.c, nanoGPT and Hugging Face's Trainer against their own rules run beside them."""

import numpy as np
import pytest
import torch

from pretrace.batch import IGNORE_INDEX
from pretrace.data.draws import Draws, permutation_torch, permutation_torch_plain
from pretrace.data.order import DataSpec, open_order
from pretrace.errors import PretraceError
from pretrace.topology import Topology

NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}
S = 4


def opened(order, *sources, seq_len=S):
    return open_order(DataSpec(sources=sources, seq_len=seq_len, order=order, documents=NO_RULES))


def raw(path, ids, dtype="uint16"):
    np.asarray(ids, dtype).tofile(path)
    return {"path": str(path), "format": "raw", "dtype": dtype}


def llmc(path, ids, magic=20240520, version=1, dtype="<u2", count=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(ids, dtype).tobytes())
    return {"path": str(path), "format": "llmc"}


def by_rank(order, topology, steps):
    """inputs[rank][micro-step] as lists, in the order that each rank reads."""
    return [
        [
            order.batch(topology.positions(s, g, r)).tokens.tolist()
            for s in range(steps)
            for g in range(topology.grad_accum_steps)
        ]
        for r in range(topology.world_size)
    ]


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", [0, 42, 2**31 + 5])
def test_randperm_is_torchs(n, seed):
    expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    np.testing.assert_array_equal(permutation_torch(n, seed), expected)
    np.testing.assert_array_equal(permutation_torch_plain(n, seed), expected)


@pytest.mark.parametrize("bound", [5, 2**28 - 1, 2**28, 2**33 + 1])
def test_randint_is_torchs(bound):
    expected = torch.randint(bound, (300,), generator=torch.Generator().manual_seed(9)).tolist()
    draws, wide = Draws(9), bound >= 2**28
    assert [draws.bounded(i * (1 + wide), bound, wide=wide) for i in range(300)] == expected


def test_draws_by_number_do_not_depend_on_what_was_asked_before():
    a, b = Draws(3), Draws(3)
    forward = [a.get(i) for i in (0, 1, 65535, 65536, 200_000)]
    assert [b.get(i) for i in (200_000, 65536, 65535, 1, 0)] == forward[::-1]
    assert forward[0] == np.random.RandomState(3).randint(0, 2**32, dtype=np.uint32)


@pytest.mark.parametrize("drop_last", [True, False])
def test_olmo_interleaves_samples_over_ranks(tmp_path, drop_last):
    sources = [raw(tmp_path / "a.npy", range(4 * 9 + 3)), raw(tmp_path / "b.npy", range(100, 100 + 4 * 6 + 1))]
    topology = Topology(world_size=2, grad_accum_steps=2, micro_batch=1)
    order = opened({"family": "olmo", "epochs": 2, "first_epoch": 0, "seed": 6198, "drop_last": drop_last,
                    "world_size": 2, "grad_accum_steps": 2, "micro_batch": 1}, *sources)  # fmt: skip
    windows = [list(range(4 * i, 4 * i + 4)) for i in range(9)] + [
        list(range(100 + 4 * i, 104 + 4 * i)) for i in range(6)
    ]
    expected = [[], []]
    for epoch in range(2):
        indices = np.arange(15, dtype=np.uint32)
        np.random.Generator(np.random.PCG64(seed=6198 + epoch)).shuffle(indices)
        indices = indices[:14] if drop_last else np.concatenate([indices, indices[:1]])
        whole = len(indices) // 4 * 4
        for rank in range(2):
            expected[rank] += [[windows[i]] for i in indices[rank:whole:2]]
    assert len(order) == 2 * (12 if drop_last else 16)
    assert by_rank(order, topology, len(order) // 4) == expected
    assert (order.batch(range(3)).labels[:, -1] == IGNORE_INDEX).all()  # S tokens give S - 1 targets


def test_llmc_in_sorted_order_drops_tails_and_advances_by_the_global_micro_batch(tmp_path):
    a = llmc(tmp_path / "x_000001.bin", range(4 * 2 * 2 + 3))
    llmc(tmp_path / "x_000000.bin", range(500, 500 + 4 * 2 * 2 + 1))
    order = opened({"family": "llmc", "epochs": 1, "shuffle_seed": None, "world_size": 2, "micro_batch": 1},
                   {**a, "path": str(tmp_path / "x_*.bin")})  # fmt: skip
    assert order.batch(range(len(order))).tokens[:, 0].tolist() == [500, 504, 508, 512, 0, 4, 8, 12]
    assert order.batch(range(1)).labels.tolist() == [[501, 502, 503, 504]]


def llmc_loader(shards, rank, world, micro, seq, calls):
    """llm.c's dataloader.h, step by step: state, advance, reset."""
    numbers = iter(np.random.RandomState(42 + rank).randint(0, 2**32, 100_000, dtype=np.uint32).tolist())

    def permute(items):
        for i in range(len(items) - 1, 0, -1):
            j = next(numbers) % (i + 1)
            items[i], items[j] = items[j], items[i]

    order, found = list(range(len(shards))), []
    stride = world * micro * seq
    shard, sample, limit = len(shards) - 1, 0, 0
    while len(found) < calls:
        if sample >= limit and shard == len(shards) - 1:
            permute(order)
            shard, sample = 0, 0
        elif sample >= limit:
            shard, sample = shard + 1, 0
        if sample == 0:
            tokens = shards[order[shard]]
            limit = (len(tokens) - 1) // stride
            inside = list(range(limit))
            permute(inside)
        start = inside[sample] * stride + rank * micro * seq
        found.append(np.asarray(tokens[start : start + micro * seq]).reshape(micro, seq).tolist())
        sample += 1
    return found


def test_llmc_shuffles_shards_and_batches_by_rank(tmp_path):
    shards = [list(range(1000 * n, 1000 * n + 4 * 4 * size + 1)) for n, size in enumerate((5, 3, 7))]
    for n, ids in enumerate(shards):
        llmc(tmp_path / f"s{n}.bin", ids)
    order = opened({"family": "llmc", "epochs": 3, "shuffle_seed": 42, "world_size": 2, "micro_batch": 2},
                   {"path": str(tmp_path / "s*.bin"), "format": "llmc"})  # fmt: skip
    topology = Topology(world_size=2, grad_accum_steps=1, micro_batch=2)
    assert len(order) == 3 * 15 * 4
    assert by_rank(order, topology, 45) == [llmc_loader(shards, r, 2, 2, S, 45) for r in range(2)]


def nanogpt_loader(data, rank, world, gas, micro, steps, interval, iters, before):
    """nanoGPT's train.py: which windows get_batch('train') gives to the forward passes."""
    generator = torch.Generator().manual_seed(1337 + rank)

    def get_batch(size):
        return torch.randint(size - S, (micro,), generator=generator).tolist()

    for _ in range(before):
        torch.randint(10, (1,), generator=generator)
    found, batch = [], get_batch(len(data))
    for step in range(steps):
        if interval and step % interval == 0 and rank == 0:
            for split in (len(data), 50):
                for _ in range(iters):
                    get_batch(split)
        for _ in range(gas):
            found.append([data[i : i + S] for i in batch])
            batch = get_batch(len(data))
    return found


@pytest.mark.parametrize("interval", [0, 2])
def test_nanogpt_draws_places_and_evaluation_draws_too(tmp_path, interval):
    data = list(range(300))
    order = opened({"family": "nanogpt", "steps": 5, "seed": 1337, "draws_before": 17, "wide_bits": 28, "world_size": 2,
                    "eval_interval": interval, "eval_iters": 3, "grad_accum_steps": 2, "micro_batch": 3},
                   raw(tmp_path / "train.bin", data))  # fmt: skip
    topology = Topology(world_size=2, grad_accum_steps=2, micro_batch=3)
    expected = [nanogpt_loader(data, r, 2, 2, 3, 5, interval, 3, 17) for r in range(2)]
    assert by_rank(order, topology, 5) == expected


def saved_rows(path, **columns):
    import datasets

    datasets.Dataset.from_dict(columns).save_to_disk(path)
    return {"path": str(path), "format": "arrow"}


def rows_order(epochs=1, seed=None, pad=None, drop_last=1):
    return {
        "family": "rows",
        "epochs": epochs,
        "shuffle_seed": seed,
        "pad_id": pad,
        "drop_last": drop_last,
        "by_piece": False,
    }


@pytest.mark.interop
def test_rows_by_a_trainers_seedable_sampler(tmp_path):
    from accelerate.data_loader import SeedableRandomSampler

    rows = [[10 * i + j for j in range(S)] for i in range(11)]
    order = opened(rows_order(3, seed=42), saved_rows(tmp_path / "d", input_ids=rows))
    sampler = SeedableRandomSampler(rows, generator=torch.Generator(), data_seed=42)
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += list(sampler)
    assert order.sample_ids(range(len(order))).tolist() == expected


def test_padding_that_is_the_end_token_hides_no_real_end(tmp_path):
    # Row 0 ends with a real end (id 0), then padding with the same id: only the mask tells them apart.
    source = saved_rows(
        tmp_path / "d", input_ids=[[5, 6, 0, 0], [7, 8, 9, 0]], attention_mask=[[1, 1, 1, 0], [1, 1, 1, 1]]
    )
    batch = opened(rows_order(pad=0), source).batch(range(2))
    assert batch.labels.tolist() == [[6, 0, IGNORE_INDEX, IGNORE_INDEX], [8, 9, 0, IGNORE_INDEX]]


def test_rows_of_another_length_are_refused_or_filled(tmp_path):
    source = saved_rows(tmp_path / "d", input_ids=[[1, 2], [1, 2, 3, 4]])
    with pytest.raises(PretraceError, match="declare pad_id"):
        opened(rows_order(), source).batch(range(1))
    assert opened(rows_order(pad=9), source).batch(range(1)).labels.tolist() == [[2, *[IGNORE_INDEX] * 3]]
    with pytest.raises(PretraceError, match="more than seq_len 3"):
        opened(rows_order(), source, seq_len=3).batch(range(1, 2))


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"magic": 1}, "magic"),
        ({"version": 2}, "version 2"),
        ({"count": 7}, "its header says"),
        ({"count": -1}, "its header"),
    ],
)
def test_damaged_llmc_shards_are_errors(tmp_path, header, match):
    source = llmc(tmp_path / "s.bin", range(50), **header)
    with pytest.raises(PretraceError, match=match):
        opened({"family": "llmc", "epochs": 1, "shuffle_seed": None, "world_size": 1, "micro_batch": 1}, source)


@pytest.mark.parametrize("content", [b"", b"\x00", bytes(7)])
def test_files_too_small_for_one_window_are_errors(tmp_path, content):
    (tmp_path / "t.bin").write_bytes(content)
    source = {"path": str(tmp_path / "t.bin"), "format": "raw", "dtype": "uint16"}
    for family in (
        {"family": "olmo", "epochs": 1, "first_epoch": 0, "seed": 1, "drop_last": True},
        {"family": "llmc", "epochs": 1, "shuffle_seed": None},
        {
            "family": "nanogpt",
            "steps": 1,
            "seed": 1,
            "draws_before": 0,
            "wide_bits": 28,
            "eval_interval": 0,
            "eval_iters": 0,
        },
    ):
        more = {"world_size": 1, "micro_batch": 1} | ({} if family["family"] == "llmc" else {"grad_accum_steps": 1})
        with pytest.raises(PretraceError):
            opened({**family, **more}, source)


def test_raw_file_that_is_another_format_is_named(tmp_path):
    np.save(tmp_path / "real.npy", np.arange(30, dtype=np.uint16))
    source = {"path": str(tmp_path / "real.npy"), "format": "raw", "dtype": "uint16"}
    nano = {"family": "nanogpt", "steps": 1, "seed": 1, "draws_before": 0, "wide_bits": 28, "eval_interval": 0, "eval_iters": 0,
            "world_size": 1, "grad_accum_steps": 1, "micro_batch": 1}  # fmt: skip
    with pytest.raises(PretraceError, match="format to npy"):
        opened(nano, source)
    assert len(opened(nano, {**source, "format": "npy", "dtype": None})) == 1
    with pytest.raises(PretraceError, match="format to llmc"):
        opened(nano, {**llmc(tmp_path / "s.bin", range(30)), "format": "raw", "dtype": "uint16"})
    with pytest.raises(PretraceError, match="declare dtype"):
        opened(nano, {**source, "dtype": None})


def test_datatrove_shard_is_read_with_its_documents(tmp_path):
    np.arange(12, dtype="<u2").tofile(tmp_path / "a.ds")
    np.array([3, 3, 12], "<u8").tofile(tmp_path / "a.ds.index")
    source = {"path": str(tmp_path / "a.ds"), "format": "datatrove", "dtype": "uint16"}
    stream = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": True}
    order = opened(stream, source)
    assert order.tokens(range(2)).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert [s.document for s in order.documents(0)] == [0, 2]
    np.array([3, 2, 12], "<u8").tofile(tmp_path / "a.ds.index")
    with pytest.raises(PretraceError, match="do not rise"):
        opened(stream, source)
