"""The three arrays: golden cases of NeoX and Megatron-core, laws, and the compiled loops against the plain ones."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import GOLDEN
from pretrace.data import blend, index
from pretrace.data.shuffle import Fast, Plain
from pretrace.data.tokenfile import open_pair
from pretrace.errors import PretraceError

CASES = GOLDEN / "neox_index"
BOTH = pytest.mark.parametrize("kernels", ["plain", "fast"])


def case(name):
    folder = CASES / name
    return json.loads((folder / "case.json").read_text()), np.load(folder / "expected.npz"), folder


def assert_maps(maps, expected, names):
    for array, name in zip((maps.doc_idx, maps.sample_idx, maps.shuffle_idx), names):
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name])


def neox(prefix, about, requested, documents=None, kernels="fast"):
    file = open_pair(prefix)
    documents = range(len(file)) if documents is None else documents
    plan = index.neox_plan(file.n_tokens_of(documents), documents, about["seq_length"], requested, "v1.0")
    return index.build(plan, file.lengths, about["seed"], kernels=kernels)


@BOTH
@pytest.mark.parametrize("name", ["c1_one_epoch", "c2_three_epochs_edges", "c5_int32_vocab"])
def test_single_neox_corpus_gives_the_golden_arrays(name, kernels):
    about, expected, folder = case(name)
    maps = neox(folder / "corpus", about, about["num_samples_requested"], kernels=kernels)
    assert_maps(maps, expected, ("doc_idx", "sample_idx", "shuffle_idx"))


@BOTH
def test_split_neox_corpus_gives_the_golden_arrays(kernels):
    about, expected, folder = case("c3_split_969_30_1")
    bounds = index.split_bounds(about["split"], 203, "neox")
    assert list(bounds) == about["split_bounds"]
    for k, part in enumerate(("train", "valid")):
        documents = range(bounds[k], bounds[k + 1])
        maps = neox(folder / "corpus", about, about["num_samples_requested"][k], documents, kernels)
        assert_maps(maps, expected, (f"{part}_doc_idx", f"{part}_sample_idx", f"{part}_shuffle_idx"))


@BOTH
def test_neox_blend_gives_the_golden_arrays(kernels):
    about, expected, folder = case("c4_blend_two")
    for k, weight in enumerate(about["weights"]):
        requested = math.ceil(about["train_iters"] * about["train_batch_size"] * weight * 1.005)
        assert requested == about["num_samples_requested"][k]
        maps = neox(folder / f"corpus_{k}", about, requested, kernels=kernels)
        assert_maps(maps, expected, (f"doc_idx_{k}", f"sample_idx_{k}", f"shuffle_idx_{k}"))
    weights = np.array(about["weights"]) / sum(about["weights"])
    choice, within = blend.by_weight(weights, about["blend_len"], kernels=kernels)
    np.testing.assert_array_equal(choice, expected["dataset_index"])
    np.testing.assert_array_equal(within, expected["dataset_sample_index"])


@BOTH
@pytest.mark.parametrize(
    "name",
    ["m1_one_epoch", "m2_separate_final_epoch", "m3_joint_final_epoch", "m4_split_partial_valid", "m5_no_extra_token"],
)
def test_megatron_corpus_gives_the_golden_arrays(name, kernels):
    about, expected, folder = case(name)
    file = open_pair(folder / "corpus")
    bounds = index.split_bounds(about["split"], len(file), "megatron")
    for k, part in enumerate(("train", "valid", "test")):
        if about["lens"][part] is None:
            continue
        documents = range(bounds[k], bounds[k + 1])
        partial = part == "valid" and not about["options"].get("drop_last_partial_validation_sequence", True)
        plan = index.megatron_plan(
            file.n_tokens_of(documents), documents, about["sequence_length"], about["sizes_requested"][k],
            extra_token=about["options"].get("add_extra_token_to_sequence", True), keep_partial=partial)  # fmt: skip
        assert plan.epochs == about["num_epochs"][part]
        maps = index.build(plan, file.lengths, about["random_seed"], kernels=kernels)
        assert_maps(maps, expected, (f"{part}_document_index", f"{part}_sample_index", f"{part}_shuffle_index"))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda x: sum(x) > 1),
    seq_len=st.integers(1, 20),
    requested=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
    megatron=st.booleans(),
    extra=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_fast_and_plain_agree_and_every_law_holds(lengths, seq_len, requested, seed, megatron, extra):
    lengths, documents = np.array(lengths, np.int32), range(len(lengths))
    total = int(lengths.sum())
    if megatron:
        plan = index.megatron_plan(total, documents, seq_len, requested, extra_token=extra, keep_partial=False)
    else:
        plan = index.neox_plan(total, documents, seq_len, requested, "head")
    fast, plain = (index.build(plan, lengths, seed, kernels=k) for k in ("fast", "plain"))
    for name in ("doc_idx", "sample_idx", "shuffle_idx"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(plain, name))
    assert plan.samples >= requested
    assert sorted(fast.shuffle_idx.tolist()) == list(range(plan.samples))  # a permutation
    assert sorted(fast.doc_idx.tolist()) == sorted(list(documents) * plan.epochs)  # every document once an epoch
    ends = np.concatenate([[0], np.cumsum(lengths[fast.doc_idx], dtype=np.int64)])
    places = ends[fast.sample_idx[:, 0]] + fast.sample_idx[:, 1]
    assert places.tolist() == [i * seq_len for i in range(plan.samples + 1)]  # no token skipped, none read twice


@given(
    n=st.integers(0, 3000), seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["int32", "uint32", "int64", "int16"])
)
@settings(max_examples=60, deadline=None)
def test_shuffle_is_numpys_and_goes_on_where_it_stopped(n, seed, dtype):
    fast, plain = Fast(seed), Plain(seed)
    for size in (n, 5, n // 2):
        a, b = np.arange(size).astype(dtype), np.arange(size).astype(dtype)
        fast.shuffle(a)
        plain.shuffle(b)
        np.testing.assert_array_equal(a, b)


def test_empty_part_is_refused_where_upstream_loops_for_ever():
    with pytest.raises(PretraceError, match="hold no token"):
        index.neox_plan(0, range(0), 8, 5, "v1.0")
    with pytest.raises(PretraceError, match="hold no token"):
        index.megatron_plan(0, range(3), 8, 5, extra_token=True, keep_partial=False)


def test_gpt_neox_493_slots_beyond_int32_are_refused_with_the_number():
    # 230 epochs of 1e7 documents: 2.3e9 slots; upstream's C++ wraps from 2^31 on without a word.
    with pytest.raises(PretraceError, match=r"2,300,000,000"):
        index.neox_plan(10**8, range(10**7), 2048, 229 * 10**8 // 2048 + 1, "v1.0")


def test_head_widens_rows_by_the_number_of_samples():
    plan = index.neox_plan(2 * 10**12, range(100), 1000, None, "head")
    assert plan.row_dtype == "int64"
    assert index.neox_plan(2 * 10**11, range(100), 1000, None, "head").row_dtype == "int32"


def test_megatron_counts_the_kept_partial_sample_in_float32_as_its_cpp_does():
    plan = index.megatron_plan(50_331_651, range(1), 1024, None, extra_token=True, keep_partial=True)
    assert plan.samples == 49_152  # in float64 it is 49,153


@pytest.mark.parametrize("split", ["", "a,b", "0,0,0", "-1,2", "nan,1"])
def test_a_split_that_is_no_split_is_refused(split):
    with pytest.raises(PretraceError, match="split"):
        index.split_bounds(split, 100, "neox")


@given(size=st.integers(1, 10**6), shares=st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any))
def test_neox_split_covers_every_document_once(size, shares):
    bounds = index.split_bounds(",".join(map(str, shares)), size, "neox")
    assert bounds[0] == 0
    assert bounds[3] == size


@BOTH
def test_megatron_float32_count_below_the_whole_samples_builds_as_many_rows(kernels):
    # 2^25 + 1 samples of one token: float32 rounds the count down by one, and upstream's C++ makes that many rows.
    plan = index.megatron_plan(2**25 + 2, range(1), 1, None, extra_token=True, keep_partial=True)
    assert plan.samples == 2**25
    small = index.IndexPlan(range(2), 9, 2, 1, False, 3, 3, True, "int32")  # the same, in small: 4 fit, 3 are counted
    maps = index.build(small, np.array([4, 5], np.int32), 1, kernels=kernels)
    assert maps.sample_idx.shape == (4, 2)


def test_small_indices_do_not_load_the_compiler():
    import subprocess
    import sys

    code = (
        "import sys, numpy as np; from pretrace.data import index; p = index.neox_plan(100, range(4), 8, 5, 'v1.0');"
        "index.build(p, np.full(4, 25, np.int32), 1); print('numba' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "False"


@pytest.mark.slow  # compiles everything anew
def test_kernels_work_where_numba_has_no_place_for_its_cache():
    import subprocess
    import sys

    code = (
        "from numba.core import caching; caching.CacheImpl._locator_classes = []; import numpy as np;"
        "from pretrace.data.shuffle import Fast; a = np.arange(5); Fast(1).shuffle(a); print(a.tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    plain = np.arange(5)
    Plain(1).shuffle(plain)
    assert out.stdout.strip() == str(plain.tolist())
