"""Public problems with data, each in small, named after its thread."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Impl
from tokenizers import models, pre_tokenizers, processors

from pretrace.data import check, index, packing, tokenizer
from pretrace.data.draws import permutation_torch
from pretrace.data.order import DataSpec, first_difference, open_order
from pretrace.data.parts import units_of
from pretrace.data.tokenfile import open_pair, write_pair
from pretrace.data.tokenise import TokeniseSpec, tokenise
from pretrace.data.tokenizer import Tokenizer
from pretrace.topology import Topology

NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def opened(order, *sources, seq_len=4):
    return open_order(DataSpec(sources=sources, seq_len=seq_len, order=order, documents=NO_RULES))


def rows(path, n, width=4):
    import datasets

    datasets.Dataset.from_dict({"input_ids": [[i] * width for i in range(n)]}).save_to_disk(path)
    return {"path": str(path), "format": "arrow"}


def rows_order(epochs, seed):
    return {"family": "rows", "epochs": epochs, "shuffle_seed": seed, "pad_id": None, "drop_last": 1, "by_piece": False}


def pair(path, documents, dtype="uint16"):
    write_pair(path, [np.asarray(d) for d in documents], dtype)
    return {"path": str(path), "format": "bin_idx"}


def neox(n, seed=1234):
    return {
        "family": "neox",
        "version": "v1.0",
        "num_samples": n,
        "seed": seed,
        "split": None,
        "part": "train",
        "surplus": False,
    }


OLMO = {"family": "olmo", "first_epoch": 0, "drop_last": True, "world_size": 1, "grad_accum_steps": 1, "micro_batch": 1}
NANO = {"family": "nanogpt", "seed": 1337, "draws_before": 0, "wide_bits": 28, "eval_interval": 0, "eval_iters": 0,
        "world_size": 1, "grad_accum_steps": 1, "micro_batch": 4}  # fmt: skip


def test_accelerate_2016_resumed_in_a_later_epoch_reads_the_same_batches(tmp_path):
    order = opened(rows_order(3, 42), rows(tmp_path / "d", 32))
    uninterrupted = [order.sample_ids(range(4 * b, 4 * b + 4)).tolist() for b in range(24)]
    again = opened(
        rows_order(3, 42), {"path": str(tmp_path / "d"), "format": "arrow"}
    )  # stopped after batch 3 of epoch 1
    assert [again.sample_ids(range(4 * b, 4 * b + 4)).tolist() for b in range(11, 24)] == uninterrupted[11:]
    # The fault: the rebuilt loader draws epoch 1 from seed + 0.
    faulty = permutation_torch(32, 42 + 0).reshape(8, 4)[3:].tolist()
    assert faulty != uninterrupted[11:16]


def test_datasets_7901_resumed_shuffle_loses_and_repeats_nothing(tmp_path):
    source = rows(tmp_path / "d", 12)
    taken = opened(rows_order(1, 42), source).sample_ids(range(3)).tolist()
    rest = (
        opened(rows_order(1, 42), source).sample_ids(range(3, 12)).tolist()
    )  # a new process knows nothing but the spec
    assert sorted(taken + rest) == list(range(12))


def test_olmo_584_second_epoch_has_its_own_order_without_being_told(tmp_path):
    np.arange(40, dtype="<u2").tofile(tmp_path / "t.npy")
    source = {"path": str(tmp_path / "t.npy"), "format": "raw", "dtype": "uint16"}
    right = opened({**OLMO, "epochs": 2, "seed": 6198}, source)
    assert len(right) == 20  # the duration is two passes, not one
    first, second = right.sample_ids(range(10)), right.sample_ids(range(10, 20))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert first.tolist() != second.tolist()
    # Epoch left at 0 on resume: the run reads the first epoch again.
    left_at_0 = opened({**OLMO, "epochs": 1, "seed": 6198}, source).sample_ids(range(3, 10))
    np.testing.assert_array_equal(left_at_0, first[3:])
    assert right.sample_ids(range(13, 20)).tolist() != first[3:].tolist()


def test_pythia_136_sample_by_maps_and_sample_of_the_preshuffled_copy_are_the_same(tmp_path):
    rng = np.random.default_rng(12)
    source = pair(tmp_path / "corpus", [np.append(rng.integers(1, 500, n), 0) for n in rng.integers(3, 30, 12)])
    mapped = opened(neox(15), source, seq_len=8)
    copy = pair(tmp_path / "pre", mapped.tokens(range(len(mapped))))
    ready = opened({"family": "preshuffled"}, copy, seq_len=8)
    np.testing.assert_array_equal(ready.tokens(range(5, 6)), mapped.tokens(range(5, 6)))
    assert mapped.tokens(range(1)).shape == (1, 9)  # 2049 = 2048 inputs plus the shifted label
    assert first_difference(mapped, ready, 4, 3).first_step is None
    # The trap: read as a corpus, the pre-shuffled copy is shuffled again and its windows drift.
    again = opened(neox(10), copy, seq_len=8)
    assert first_difference(ready, again, 4, 2).equal_batches == 0


def test_gpt_neox_pr_308_position_counts_gradient_accumulation():
    topology = Topology(world_size=1, grad_accum_steps=2, micro_batch=1)
    assert topology.step_positions(600).start == 1200  # position = iteration would read steps 300.. again


def test_nanogpt_467_resumed_run_reads_the_first_batches_again(tmp_path):
    np.arange(5000, dtype="<u2").tofile(tmp_path / "t.bin")
    source = {"path": str(tmp_path / "t.bin"), "format": "raw", "dtype": "uint16"}
    order = opened({**NANO, "steps": 20}, source)
    resumed = opened({**NANO, "steps": 10}, source)  # what get_batch draws after torch.manual_seed(1337) at step 10
    np.testing.assert_array_equal(resumed.sample_ids(range(40)), order.sample_ids(range(40)))
    assert not np.isin(order.sample_ids(range(40, 80)), resumed.sample_ids(range(40))).all()


def test_streaming_725_number_of_nodes_changes_no_batch(tmp_path):
    source = pair(tmp_path / "p", [range(1, 60)] * 9)
    order = opened({"family": "stream", "epochs": 1, "document_seed": 1, "sample_seed": 2, "mix_epochs": True}, source)
    steps = {}
    for world_size in (1, 2, 4, 8):
        topology = Topology(world_size=world_size, grad_accum_steps=8 // world_size, micro_batch=1)
        rows = [
            order.sample_ids(topology.positions(0, g, r)) for g in range(8 // world_size) for r in range(world_size)
        ]
        steps[world_size] = np.concatenate(rows).tolist()
    assert all(read == steps[1] for read in steps.values())
    # An order that is tied to the topology is other data after a change of it, and the comparison says how much.
    (tmp_path / "s.bin").write_bytes(
        np.array([20240520, 1, 401] + [0] * 253, "<i4").tobytes() + np.arange(401, dtype="<u2").tobytes()
    )
    tied = [opened({"family": "llmc", "epochs": 1, "shuffle_seed": 42, "world_size": w, "micro_batch": 1},
                   {"path": str(tmp_path / "s.bin"), "format": "llmc"}) for w in (1, 2)]  # fmt: skip
    found = first_difference(*tied, global_batch=4, steps=20)
    assert found.first_step == 0
    assert found.equal_batches == 0


def test_megatron_lm_176_last_epoch_may_hold_one_sample_more_than_an_epoch_alone():
    # Three passes of 107 tokens: 40 samples of 8, 26 of them before the last pass, 13 in one alone. 40 - 26 > 13 was an
    # assertion that stopped the run.
    plan = index.megatron_plan(107, range(10), 8, 40, extra_token=True, keep_partial=False)
    assert (plan.epochs, plan.samples, plan.separate_last) == (3, 40, False)


def test_gpt_neox_1018_the_surplus_can_ask_for_one_more_epoch(tmp_path):
    source = pair(tmp_path / "p", [range(1, 402)])  # 100 samples of 4 in one pass
    plain, surplus = (opened({**neox(100), "surplus": s}, source).windows.maps for s in (False, True))
    assert (len(plain.doc_idx), len(surplus.doc_idx)) == (1, 2)  # ceil(100 * 1.005) = 101


def test_tinyllama_67_every_shard_is_read_once_by_all_ranks_together(tmp_path):
    for n in range(4):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, 17
        (tmp_path / f"s{n}.bin").write_bytes(header.tobytes() + np.arange(100 * n, 100 * n + 17, dtype="<u2").tobytes())
    source = {"path": str(tmp_path / "s*.bin"), "format": "llmc"}
    fixed = opened({"family": "llmc", "epochs": 1, "shuffle_seed": None, "world_size": 2, "micro_batch": 1}, source)
    assert sorted(fixed.sample_ids(range(len(fixed))).tolist()) == list(range(16))
    # llm.c's own shuffling seeds every rank with 42 + rank: some windows are read twice, others never.
    own = opened({"family": "llmc", "epochs": 1, "shuffle_seed": 42, "world_size": 2, "micro_batch": 1}, source)
    assert len(set(own.sample_ids(range(len(own))).tolist())) <= 16


def test_modded_nanogpt_174_unshuffled_shards_come_topic_by_topic(tmp_path):
    source = pair(tmp_path / "p", [[topic] * 20 for topic in range(8)])
    plain = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": True}
    topics = [len(np.unique(opened(plain, source).tokens(range(4 * s, 4 * s + 4)))) for s in range(9)]
    mixed = [
        len(np.unique(opened({**plain, "sample_seed": 1}, source).tokens(range(4 * s, 4 * s + 4)))) for s in range(9)
    ]
    assert max(topics) <= 2 < max(mixed)


def test_olmo_core_pr_273_identity_of_the_data_does_not_change_with_the_batch():
    assert not {"global_batch", "micro_batch", "world_size"} & DataSpec.model_fields.keys()


def toy(prepend):
    vocabulary = {"<unk>": 0, "▁word": 1, "word": 2, "▁x": 3, "x": 4, "<s>": 5}
    impl = Impl(models.WordLevel(vocabulary, "<unk>"))
    impl.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    return Tokenizer(impl, "tokenizers", 6, {"<s>": 5}, "toy")


@pytest.mark.parametrize(("prepend", "spaced"), [("always", True), ("never", False)])
def test_transformers_29625_leading_space_is_measured_not_believed(prepend, spaced):
    assert tokenizer.habits(toy(prepend)).leading_space is spaced


def test_lm_evaluation_harness_1465_begin_token_is_seen_in_the_tokenizer_and_in_the_file(tmp_path):
    loaded = toy("never")
    loaded.impl.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 5)])
    assert tokenizer.habits(loaded).adds_begin == (5,)
    assert loaded.encode("word").tolist() == [2]  # a policy that is not declared is not applied
    pair(tmp_path / "with", [[5, n, n + 1] + [7] * n for n in range(10, 40)])
    pair(tmp_path / "without", [[n, n + 1] + [7] * n for n in range(10, 40)])
    codes = [[f.code for f in check.check_pair(tmp_path / name, check.Declared())[0]] for name in ("with", "without")]
    assert "begin-id" in codes[0]
    assert "begin-id" not in codes[1]


def test_llamafactory_6133_number_of_samples_does_not_depend_on_workers(tmp_path):
    letters = tokenizer.train(["abc"], 257, specials=("<e>",))
    tokenizer.save(letters, tmp_path / "t.json")
    with (tmp_path / "c.jsonl").open("w") as file:
        for n in range(40):
            file.write(json.dumps({"text": chr(97 + n % 26) * 25}) + "\n")
    corpus = {"paths": [str(tmp_path / "c.jsonl")], "format": "jsonl", "field": "text", "holds": "text"}
    spec = TokeniseSpec(corpus=corpus, tokenizer=str(tmp_path / "t.json"), prepend=None, append=None, empty="drop",
                        special_text="token", dtype=None, backend="tokenizers", judge_every=1)  # fmt: skip
    tokenise(spec, tmp_path / "p", workers=0)
    file = open_pair(tmp_path / "p")
    assert file.n_tokens == 1000
    blocks = packing.PackSpec(strategy="stream", length=16, shortest=None, budget=None, end="none", end_id=None, pad="none",
                              pad_id=None, pad_rows=None)  # fmt: skip
    assert packing.plan(file.lengths, blocks).n_rows == 62
    # The fault: each worker joins and cuts its own share and drops its own rest.
    shares = {w: sum(len(part) * 25 // 16 for part in np.array_split(np.arange(40), w)) for w in (1, 4, 8)}
    assert shares == {1: 62, 4: 60, 8: 56}
    assert [u.number for u in units_of(spec.corpus)] == [0]


def test_axolotl_3152_planned_rows_are_the_rows(tmp_path):
    lengths = np.array([90, 60, 50, 30, 20, 10])
    spec = packing.PackSpec(strategy="best_fit", length=100, shortest=1, budget=None, end="none", end_id=None, pad="none",
                            pad_id=None, pad_rows=None)  # fmt: skip
    made = packing.plan(lengths, spec)
    # 260 tokens in rows of 100: an estimate by efficiency says 2.6; the plan says what is read, on every rank.
    assert made.n_rows == 3
    assert made.row_lengths().tolist() == [100, 90, 70] or sorted(made.row_lengths().tolist()) == [70, 90, 100]
    assert made.n_rows // 2 == 1  # steps of two ranks, one row each, the last dropped


def test_maxtext_330_denser_packing_averages_other_tokens():
    lengths = np.array([3, 9, 5, 12, 4, 7, 8, 2, 10, 6])
    common = {
        "length": 12,
        "budget": None,
        "end": "none",
        "end_id": None,
        "pad": "none",
        "pad_id": None,
        "pad_rows": None,
    }
    stream = packing.plan(lengths, packing.PackSpec(strategy="stream", shortest=None, **common))
    wrapped = packing.plan(lengths, packing.PackSpec(strategy="wrap", shortest=5, **common))

    def mean_loss(plan):  # a loss per token that falls with its place in the document: 1 / (1 + place)
        return np.mean([1 / (1 + t) for a, b in zip(plan.start, plan.stop) for t in range(a, b)])

    assert stream.row_lengths().sum() != wrapped.row_lengths().sum()
    assert abs(mean_loss(stream) - mean_loss(wrapped)) > 0.01  # the same model, two curves: not comparable as such
