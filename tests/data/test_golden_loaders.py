"""Orders against what the original programs read: llm.c, OLMo, nanoGPT, Pythia's viewer, Megatron-core, NeoX (golden/loaders)."""

import hashlib
import json

import numpy as np
import pytest

from assets import GOLDEN
from pretrace.batch import IGNORE_INDEX
from pretrace.data import overflow as packing
from pretrace.data.order import DataSpec, open_order
from pretrace.data.samplers import Listed, blended
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError
from pretrace.topology import Topology

NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def case(name):
    folder = GOLDEN / "loaders" / name
    return json.loads((folder / "case.json").read_text()), np.load(folder / "expected.npz"), folder


def opened(order, sources, seq_len):
    return open_order(DataSpec(sources=sources, seq_len=seq_len, order=order, documents=NO_RULES))


@pytest.mark.parametrize("shuffle", [0, 1])
def test_llmc_ranks_read_what_its_compiled_loader_reads(shuffle):
    about, expected, folder = case("llmc")
    ranks, micro = about["world_size"], about["micro_batch"]
    order = opened({"family": "llmc", "epochs": 3, "shuffle_seed": about["shuffle_seed"] if shuffle else None,
                    "world_size": ranks, "micro_batch": micro},
                   [{"path": str(folder / "shard_*.bin"), "format": "llmc"}], about["seq_len"])  # fmt: skip
    topology = Topology(world_size=ranks, grad_accum_steps=1, micro_batch=micro)
    for rank in range(ranks):
        wanted = expected[f"shuffle{shuffle}_rank{rank}"]
        for step in range(min(len(wanted), len(order) // topology.global_batch)):
            batch = order.batch(topology.positions(step, 0, rank))
            np.testing.assert_array_equal([batch.tokens, batch.labels], wanted[step])
    assert len(order) // topology.global_batch >= 30  # three epochs of the shards


@pytest.mark.parametrize("drop_last", [True, False])
def test_olmo_ranks_read_what_its_own_dataset_and_iterator_give(drop_last):
    about, expected, folder = case("olmo")
    ranks = about["world_size"]
    micro = about["global_batch"] // ranks
    family = {"family": "olmo", "epochs": about["epochs"], "first_epoch": 0, "seed": about["seed"], "drop_last": drop_last,
              "world_size": ranks, "grad_accum_steps": 1, "micro_batch": micro}  # fmt: skip
    sources = [{"path": str(folder / f), "format": "raw", "dtype": "uint16"} for f in about["files"]]
    order = opened(family, sources, about["seq_len"])
    topology = Topology(world_size=ranks, grad_accum_steps=1, micro_batch=micro)
    wanted = expected[f"drop_last_{drop_last}"]  # [ranks, epochs, samples, T]
    steps = wanted.shape[2] // micro  # whole batches of an epoch
    assert len(order) == about["epochs"] * steps * topology.global_batch
    for epoch, step, rank in np.ndindex(about["epochs"], steps, ranks):
        batch = order.batch(topology.positions(epoch * steps + step, 0, rank))
        rows = wanted[rank, epoch, step * micro : (step + 1) * micro]
        np.testing.assert_array_equal(batch.tokens, rows)
        np.testing.assert_array_equal(batch.labels[:, :-1], rows[:, 1:])
        assert (batch.labels[:, -1] == IGNORE_INDEX).all()  # S tokens, S - 1 targets


def test_nanogpt_reads_the_places_that_its_train_script_drew_between_evaluations():
    about, expected, folder = case("nanogpt")
    had, gas = about["settings"], about["settings"]["gradient_accumulation_steps"]
    order = opened({"family": "nanogpt", "steps": 8, "seed": 1337, "draws_before": about["draws_before"], "wide_bits": 28,
                    "eval_interval": had["eval_interval"], "eval_iters": had["eval_iters"], "world_size": 1,
                    "grad_accum_steps": gas, "micro_batch": had["batch_size"]},
                   [{"path": str(folder / "train.bin"), "format": "raw", "dtype": "uint16"}], had["block_size"])  # fmt: skip
    wanted = expected["train"][: 8 * gas]  # one batch more was fetched ahead
    np.testing.assert_array_equal(order.sample_ids(range(wanted.size)), wanted.reshape(-1))


def test_step_of_a_preshuffled_pair_is_what_pythias_batch_viewer_shows(tmp_path):
    about, expected, _ = case("preshuffled")
    write_pair(tmp_path / "pre", [(i + np.arange(2049)) % 50_000 for i in range(1030)], "uint16")
    order = opened({"family": "preshuffled"}, [{"path": str(tmp_path / "pre"), "format": "bin_idx"}], 2048)
    step = order.tokens(range(1024))
    assert hashlib.sha256(step.astype("<i8").tobytes()).hexdigest() == about["sha256_int64"]
    np.testing.assert_array_equal(step[:, 0], expected["first_tokens"])


def corpora(folder):
    for k, n in enumerate((40, 17, 60)):
        rng = np.random.default_rng(k + 1)
        write_pair(folder / f"c{k}", [np.append(rng.integers(1, 500, m), 0) for m in rng.integers(3, 30, n)], "uint16")


@pytest.mark.parametrize("name", ["by_length", "by_length_capped", "exhaustive", "by_weight", "one_with_weight"])
def test_megatron_blend_serves_the_rows_that_its_builder_serves(tmp_path, name):
    corpora(tmp_path)
    about, expected, _ = case("megatron_blends")
    blend = about["cases"][name]
    weights = blend["weights"] or [None] * len(blend["corpora"])
    sources = [{"path": str(tmp_path / c), "format": "bin_idx", "weight": w} for c, w in zip(blend["corpora"], weights)]
    order = opened({"family": "megatron", "num_samples": blend["size"], "seed": about["seed"], "split": "1,0,0", "part": "train",
                    "extra_token": True, "keep_partial": False, "pad_id": None}, sources, about["seq_len"])  # fmt: skip
    np.testing.assert_array_equal(order.tokens(range(len(order))), expected[name])


def overflow(path, had, seq_len, **more):
    first, stop = had["documents"]
    split = (
        {"split": f"{first},{stop - first},{60 - stop}", "part": "valid"} if first else {"split": None, "part": "train"}
    )
    return opened({"family": "neox", "version": "head", "num_samples": had["num_samples"], "seed": had["seed"], "surplus": False,
                   "packing": "pack_until_overflow", "allow_chopped": had["allow_chopped"], **split, **more},
                  [{"path": str(path / had["corpus"]), "format": "bin_idx"}], seq_len)  # fmt: skip


@pytest.mark.parametrize("name", ["chopped", "split", "whole"])
def test_neox_pack_until_overflow_serves_the_rows_that_its_dataset_serves(tmp_path, name):
    corpora(tmp_path)
    about, expected, _ = case("neox_overflow")
    order = overflow(tmp_path, about["cases"][name], about["seq_len"])
    np.testing.assert_array_equal(order.tokens(range(len(order))), expected[name])
    held = [order.windows.file.sequence(s.document)[s.start : s.stop] for s in order.documents(3)]
    assert order.tokens(range(3, 4))[0].tolist()[: sum(map(len, held))] == np.concatenate(held).tolist()


def test_neox_packing_that_the_original_cannot_do_is_refused(tmp_path):
    corpora(tmp_path)
    had = {"corpus": "c0", "documents": [0, 40], "num_samples": 30, "seed": 10, "allow_chopped": False}
    with pytest.raises(PretraceError, match="GPT-NeoX fails here"):  # an IndexError there
        overflow(tmp_path, had, 24)
    with pytest.raises(PretraceError, match="needs a file of labels"):
        overflow(tmp_path, had, 24, packing="unpacked")
    with pytest.raises(PretraceError, match=r"v1.0 has `packed` only"):
        overflow(tmp_path, had, 24, version="v1.0")
    with pytest.raises(PretraceError, match="none is declared"):
        overflow(tmp_path, {**had, "num_samples": None}, 24)


@pytest.mark.parametrize("name", ["one_more", "begins_again"])
def test_neox_blend_beyond_the_length_of_a_source_serves_the_rows_that_its_dataset_serves(tmp_path, name):
    corpora(tmp_path)
    about, expected, _ = case("neox_blends")
    blend = about["cases"][name]
    sources = [
        {"path": str(tmp_path / c), "format": "bin_idx", "weight": w}
        for c, w in zip(blend["corpora"], blend["weights"])
    ]
    order = opened({"family": "neox", "version": "head", "num_samples": blend["num_samples"], "seed": about["seed"],
                    "split": None, "part": "train", "surplus": False}, sources, about["seq_len"])  # fmt: skip
    np.testing.assert_array_equal(order.tokens(range(len(order))), expected[name])


def test_overdrawn_source_gives_its_unreachable_sample_then_begins_again():
    # A source of 3 samples has length 2: place 2 is still in its list, place 3 is served as 3 mod 2, place 4 as 4 mod 2.
    source, choice = Listed(np.array([5, 3, 4]), 2), np.zeros(5, np.int16)
    assert blended([source], (choice, np.arange(5)), wrap=True).samples.tolist() == [5, 3, 4, 3, 5]
    with pytest.raises(PretraceError, match="asks source 0 for 5 samples, it has 0"):  # upstream divides by zero
        blended([Listed(np.array([5]), 0)], (choice, np.arange(5)), wrap=True)


@pytest.mark.parametrize("chop", [True, False])
def test_compiled_walk_of_overflow_packing_is_the_plain_one(chop):
    lengths = np.random.default_rng(5).integers(0, 40, 3000).astype(np.int32)
    results = []
    for walk in (packing._walk, packing._compiled()):
        documents, first_slot = np.zeros(3000, np.int64), np.zeros(4000, np.int64)
        results.append(
            [*walk(np.arange(3000), lengths, 30, chop, 0, 0, documents, first_slot, 0), documents, first_slot]
        )
    for plain, fast in zip(*results):
        np.testing.assert_array_equal(plain, fast)
