"""Orders: the samples of the golden cases, the same set a step for every topology, resuming anywhere, differences."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import GOLDEN
from pretrace.batch import IGNORE_INDEX
from pretrace.data.order import DataSpec, batch_of, first_difference, open_order
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError
from pretrace.topology import Topology

CASES = GOLDEN / "neox_index"
MEGATRON = (
    "m1_one_epoch",
    "m2_separate_final_epoch",
    "m3_joint_final_epoch",
    "m4_split_partial_valid",
    "m5_no_extra_token",
)
NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}


def neox(n, *, seed=1234, split=None, part="train", surplus=False, version="v1.0"):
    return {
        "family": "neox",
        "version": version,
        "num_samples": n,
        "seed": seed,
        "split": split,
        "part": part,
        "surplus": surplus,
    }


def megatron(n, *, split="1,0,0", part="train", extra=True, partial=False, pad=None):
    return {"family": "megatron", "num_samples": n, "seed": 1234, "split": split, "part": part, "extra_token": extra,
            "keep_partial": partial, "pad_id": pad}  # fmt: skip


def stream(epochs=1, documents=None, samples=None, mix=True):
    return {"family": "stream", "epochs": epochs, "document_seed": documents, "sample_seed": samples, "mix_epochs": mix}


def opened(prefixes, seq_len, order, weights=None, rules=NO_RULES):
    weights = weights or [None] * len(prefixes)
    sources = [{"path": str(p), "format": "bin_idx", "weight": w} for p, w in zip(prefixes, weights)]
    return open_order(DataSpec(sources=sources, seq_len=seq_len, order=order, documents=rules))


def case(name):
    return json.loads((CASES / name / "case.json").read_text()), np.load(CASES / name / "expected.npz"), CASES / name


@pytest.fixture
def small(tmp_path):
    write_pair(tmp_path / "small", [np.arange(10 * d, 10 * d + 7) for d in range(12)], "uint16")
    return tmp_path / "small"


@pytest.mark.parametrize("name", ["c1_one_epoch", "c2_three_epochs_edges", "c5_int32_vocab"])
def test_neox_samples_are_the_golden_ones_in_training_order(name):
    about, expected, folder = case(name)
    order = opened([folder / "corpus"], about["seq_length"], neox(about["num_samples_requested"], seed=about["seed"]))
    assert len(order) == about["dataset_len"]  # one fewer than exist
    np.testing.assert_array_equal(order.tokens(range(len(order))), expected["samples"])


@pytest.mark.parametrize(("part", "k"), [("train", 0), ("valid", 1)])
def test_neox_split_samples_are_the_golden_ones(part, k):
    about, expected, folder = case("c3_split_969_30_1")
    order = opened([folder / "corpus"], 16, neox(about["num_samples_requested"][k], split=about["split"], part=part))
    assert len(order) == about["lens"][part]
    np.testing.assert_array_equal(order.tokens(range(8)), expected[f"{part}_samples"])


def test_empty_test_split_is_an_error_not_an_endless_loop():
    _, _, folder = case("c3_split_969_30_1")
    with pytest.raises(PretraceError, match="hold no token"):
        opened([folder / "corpus"], 16, neox(8, split="969,30,1", part="test"))


def test_neox_blend_samples_are_the_golden_ones():
    about, expected, folder = case("c4_blend_two")
    prefixes = [folder / "corpus_0", folder / "corpus_1"]
    order = opened(prefixes, 16, neox(25 * 8, surplus=True), about["weights_in"])
    assert len(order) == about["blend_len"]
    np.testing.assert_array_equal(order.tokens(range(32)), expected["samples_head"])


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_batches_are_the_golden_ones(name):
    about, expected, folder = case(name)
    for k, part in enumerate(("train", "valid", "test")):
        if about["lens"][part] is None:
            continue
        partial = part == "valid" and "drop_last_partial_validation_sequence" in about["options"]
        extra = about["options"].get("add_extra_token_to_sequence", True)
        order = opened(
            [folder / "corpus"],
            about["sequence_length"],
            megatron(about["sizes_requested"][k], split=about["split"], part=part, extra=extra, partial=partial),
        )
        assert len(order) == about["lens"][part]
        tokens, labels = expected[f"{part}_tokens_head"], expected[f"{part}_labels_head"]
        batch = order.batch(range(len(tokens)))
        np.testing.assert_array_equal(batch.tokens, tokens)
        # Where there is no label upstream writes 0 and masks the loss.
        np.testing.assert_array_equal(np.where(batch.labels == IGNORE_INDEX, 0, batch.labels), labels)
        if not extra:
            assert (batch.labels[:, -1] == IGNORE_INDEX).all()


def test_megatron_blend_samples_are_the_golden_ones():
    about, expected, folder = case("m6_blend_two")
    order = opened([folder / "corpus_0", folder / "corpus_1"], 16, megatron(200), about["weights_in"])
    assert len(order) == 200
    np.testing.assert_array_equal(order.batch(range(16)).tokens, expected["tokens_head"])


@pytest.mark.parametrize("name", ["c2_three_epochs_edges", "c4_blend_two"])
def test_rank_placement_and_resume_are_the_golden_ones(name):
    about, _, _ = case(name)
    for key, ranks in about["order"].items():
        world, micro, gas, resume = (int("".join(filter(str.isdigit, part))) for part in key.split("_"))
        topology = Topology(world_size=world, grad_accum_steps=gas, micro_batch=micro)
        for rank, batches in enumerate(ranks):
            found = [list(topology.positions(resume + n // gas, n % gas, rank)) for n in range(len(batches))]
            assert found == batches


@given(world=st.integers(1, 4), gas=st.integers(1, 4), micro=st.integers(1, 4), step=st.integers(0, 5))
def test_any_topology_reads_the_same_set_in_a_step(world, gas, micro, step):
    topology = Topology(world_size=world, grad_accum_steps=gas, micro_batch=micro)
    read = [p for g in range(gas) for r in range(world) for p in topology.positions(step, g, r)]
    assert sorted(read) == list(topology.step_positions(step))


@given(
    start=st.integers(0, 25),
    size=st.integers(0, 10),
    seed=st.integers(0, 99),
    family=st.sampled_from(["neox", "stream"]),
)
@settings(max_examples=60, deadline=None)
def test_reading_from_anywhere_gives_what_reading_from_the_start_gives(start, size, seed, family):
    prefix = CASES / "c2_three_epochs_edges" / "corpus"
    order = opened([prefix], 8, neox(33, seed=seed) if family == "neox" else stream(3, seed, seed + 1, mix=False))
    whole = order.tokens(range(len(order)))
    np.testing.assert_array_equal(order.tokens(range(start, start + size)), whole[start : start + size])


def test_preshuffled_entries_are_samples_as_they_stand(tmp_path):
    entries = np.random.default_rng(0).integers(2, 900, (6, 9))
    write_pair(tmp_path / "pre", list(entries), "uint16")
    order = opened([tmp_path / "pre"], 8, {"family": "preshuffled"})
    np.testing.assert_array_equal(order.tokens(range(6)), entries)
    assert order.sample_ids(range(2, 5)).tolist() == [2, 3, 4]


def test_entries_in_another_order_are_the_same_entries_whole(tmp_path):
    entries = np.random.default_rng(0).integers(2, 900, (6, 9))
    write_pair(tmp_path / "pre", list(entries), "uint16")
    order = opened([tmp_path / "pre"], 8, {"family": "shuffled_entries", "seed": 3})
    expected = np.arange(6)
    np.random.RandomState(3).shuffle(expected)  # NeoX's generator
    np.testing.assert_array_equal(order.tokens(range(6)), entries[expected])


def test_file_in_corpus_order_is_refused_as_preshuffled(small):
    with pytest.raises(PretraceError, match=r"has 7 tokens, a sample needs 9"):
        opened([small], 8, {"family": "preshuffled"})


def test_both_shuffles_can_be_switched_alone(small):
    plain = opened([small], 6, stream()).tokens(range(13))
    assert plain[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert plain[1].tolist() == [6, 10, 11, 12, 13, 14, 15]
    samples = opened([small], 6, stream(samples=5)).tokens(range(13))
    assert sorted(map(tuple, samples)) == sorted(map(tuple, plain))
    assert samples.tolist() != plain.tolist()
    documents = opened([small], 6, stream(documents=5)).tokens(range(13))
    assert sorted(map(tuple, documents)) != sorted(map(tuple, plain))


def test_epochs_shuffled_alone_keep_every_document_to_its_epoch(small):
    order = opened([small], 7, stream(3, documents=1, samples=2, mix=False))
    for epoch in range(2):
        seen = {s.document for p in range(12 * epoch, 12 * epoch + 12) for s in order.documents(p)}
        assert len(seen) >= 11


def test_documents_of_a_sample_are_where_its_tokens_come_from(small):
    order = opened([small], 8, neox(9))
    for position in range(len(order)):
        row = order.tokens(range(position, position + 1))[0].tolist()
        spans = order.documents(position)
        assert row == [10 * s.document + t for s in spans for t in range(s.start, s.stop)]


def test_position_beyond_the_end_is_refused(small):
    with pytest.raises(PretraceError, match="the order has 9 samples"):
        opened([small], 8, neox(9)).tokens(range(8, 10))


def test_rules_at_documents_ends_follow_the_mark():
    rules = DataSpec.model_fields["documents"].annotation(
        eod_id=0, mask_after_eod=True, separate_attention=True, restart_positions=True)  # fmt: skip
    batch = batch_of(np.array([[5, 6, 0, 7, 0, 8]]), rules)
    assert batch.tokens.tolist() == [[5, 6, 0, 7, 0]]
    assert batch.labels.tolist() == [[6, 0, IGNORE_INDEX, 0, IGNORE_INDEX]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1]]


def test_order_does_not_differ_from_itself_and_seed_changes_the_first_step(small):
    a = opened([small], 6, stream(samples=1))
    assert first_difference(a, a, 4, 3).first_step is None
    assert first_difference(a, a, 4, 3).equal_batches == 1.0
    b = opened([small], 6, stream(samples=2))
    difference = first_difference(a, b, 4, 3)
    assert difference.first_step == 0
    assert difference.equal_samples < 0.5


def test_orders_of_other_lengths_differ_where_one_ends(small):
    long, short = opened([small], 6, stream(2)), opened([small], 6, stream())
    difference = first_difference(long, short, 4, 6)
    assert difference.first_step == len(short) // 4
    assert difference.equal_batches == 0.5


def test_digest_follows_content_where_it_is_declared_and_the_path_where_not(small):
    def spec(**source):
        sources = [{"format": "bin_idx", **source}]
        return DataSpec(sources=sources, seq_len=8, order=stream(), documents=NO_RULES).digest()

    assert spec(path="a", content="x") == spec(path="b", content="x")
    assert spec(path="a", content="x") != spec(path="a", content="y")
    assert spec(path="a") != spec(path="b")
