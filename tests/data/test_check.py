"""Findings on token files, orders and maps; most are public reports in small."""

import numpy as np
import pytest

from pretrace.data import check, check_maps, tokenfile
from pretrace.data.check import Declared
from pretrace.data.families import MegatronOrder, NeoxOrder
from pretrace.data.maps import map_spec, write_maps
from pretrace.data.sources import TokenSource
from pretrace.data.tokenfile import index_bytes, open_pair, write_pair
from pretrace.errors import PretraceError


def codes(findings, severity=None):
    return [f.code for f in findings if severity is None or f.severity == severity]


def found(prefix, **declared):
    return check.check_pair(prefix, Declared(**declared))[0]


def neox(n, **more):
    usual = {"seed": 1234, "split": "", "part": "train", "version": "v1.0", "extra_token": True, "keep_partial": False}
    return map_spec("neox", **{"num_samples": n, **usual, **more})


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(3)
    write_pair(tmp_path / "c", [np.append(rng.integers(5, 900, n), 0) for n in rng.integers(5, 40, 60)], "uint16")
    return tmp_path / "c"


def test_sound_corpus_gives_no_error_and_says_what_it_measured(corpus):
    findings = found(corpus, eod_id=0, vocab_size=1000)
    assert codes(findings, "error") == codes(findings, "warning") == []
    ids = next(f for f in findings if f.code == "ids")
    assert ids.evidence["least_id"] == 0


def test_pythia_175_and_123_declared_end_never_occurs(tmp_path):
    rng = np.random.default_rng(0)
    write_pair(tmp_path / "pre", list(rng.integers(2, 900, (50, 17))), "uint16")
    findings = found(tmp_path / "pre", eod_id=0)
    absent = next(f for f in findings if f.code == "eod-absent")
    assert absent.severity == "error"
    assert (absent.evidence["occurrences"], absent.evidence["least_id"]) == (0, 2)


def test_pythia_136_127_76_says_which_file_is_in_training_order(tmp_path, corpus):
    write_pair(tmp_path / "pre", list(np.random.default_rng(0).integers(2, 900, (50, 17))), "uint16")
    pre = next(f for f in found(tmp_path / "pre") if f.code == "preshuffled")
    assert "entry i is sample i of seq_len 16" in pre.what
    assert codes(found(tmp_path / "pre", preshuffled=False), "error") == ["preshuffled"]
    assert "corpus-order" in codes(found(corpus))
    assert codes(found(corpus, preshuffled=True), "error") == ["corpus-order"]


def test_ids_beyond_the_vocabulary_are_an_error(corpus):
    assert "id-beyond-vocabulary" in codes(found(corpus, vocab_size=500), "error")


def test_dtype_gap_of_megatrons_path_without_header(corpus):
    assert "dtype-gap" in codes(found(corpus, vocab_size=65510), "warning")
    assert "dtype-gap" not in codes(found(corpus, vocab_size=65499))


def test_datatrove_345_documents_end_with_another_id_than_the_tokenizers(corpus):
    other = next(f for f in found(corpus, eod_id=0, tokenizer_eos=2) if f.code == "other-end-id")
    assert (other.evidence["commonest_last_id"], other.severity) == (0, "error")


def test_litgpt_706_packed_documents_without_a_separator(tmp_path):
    rng = np.random.default_rng(1)
    write_pair(tmp_path / "n", [rng.integers(0, 900, n) for n in rng.integers(5, 40, 60)], "uint16")
    assert {"no-separator", "eod-absent"} & set(codes(found(tmp_path / "n", eod_id=0)))


def test_megatron_lm_431_lengths_taken_before_the_end_mark(tmp_path):
    documents = [np.append(np.arange(1, n), 0) for n in (5, 9, 3)]
    write_pair(tmp_path / "p", documents, "uint16")
    short = b"".join(index_bytes(np.dtype("u2"), np.array([len(d) - 1 for d in documents])))
    (tmp_path / "p.idx").write_bytes(short)
    assert codes(found(tmp_path / "p")) == ["lengths-without-eod"]


def test_truncated_data_file_is_found_before_a_late_sample_is_read(corpus):
    path = corpus.with_suffix(".bin")
    path.write_bytes(path.read_bytes()[:-10])
    findings = found(corpus)
    assert codes(findings) == ["damaged-pair"]
    assert "cut" in findings[0].what


def test_padding_that_is_the_end_is_a_warning(corpus):
    assert "pad-is-eod" in codes(found(corpus, eod_id=0, pad_id=0), "warning")


def test_gpt_neox_972_one_sample_short_when_request_equals_supply(corpus):
    file = open_pair(corpus)
    supply = (file.n_tokens - 1) // 8
    assert "one-sample-short" in codes(check_maps.check_order(file, neox(supply), 8))
    assert "one-sample-short" not in codes(check_maps.check_order(file, neox(supply - 1), 8))
    megatron = MegatronOrder(family="megatron", num_samples=supply, seed=1, split="1,0,0", part="train", extra_token=True,
                             keep_partial=False, pad_id=None)  # fmt: skip
    assert "one-sample-short" not in codes(check_maps.check_order(file, megatron, 8))


def blend(family, weights, **more):
    usual = {"seed": 1234, "num_samples": 100, "split": None if family == "neox" else "1,0,0", "part": "train"}
    own = {"version": "v1.0", "surplus": True} if family == "neox" else {
        "extra_token": True, "keep_partial": False, "pad_id": None}  # fmt: skip
    order = (NeoxOrder if family == "neox" else MegatronOrder)(family=family, **{**usual, **own, **more})
    return order, tuple(TokenSource(path=p, format="bin_idx", weight=w) for p, w in weights)


@pytest.mark.parametrize(("family", "wanted"), [("neox", 31), ("megatron", 31)])  # ceil(100 * 0.3 * 1.005)
def test_source_of_a_blend_is_judged_by_its_share(tmp_path, corpus, family, wanted):
    order, sources = blend(family, [("elsewhere", 7), (str(corpus) + ".bin", 3)])
    number, named = check_maps.source_of(sources, str(corpus))
    assert (number, named) == (1, [])
    share = check_maps.share_of(order, sources, number)
    assert share.wanted == wanted
    file = open_pair(corpus)
    write_maps(corpus, order.model_copy(update={"num_samples": wanted, **({"surplus": False} if family == "neox" else {})}), 8,
               tmp_path / "maps")  # fmt: skip
    assert codes(check_maps.check_maps(file, order, 8, tmp_path / "maps", share)) == ["maps"]
    assert "one-sample-short" not in codes(check_maps.check_order(file, order, 8, share))


def test_file_that_an_order_does_not_name_is_said_or_refused(corpus):
    _, sources = blend("neox", [("elsewhere", 7), ("there", 3)])
    with pytest.raises(PretraceError, match="none of them"):
        check_maps.source_of(sources, str(corpus))
    assert codes(check_maps.source_of(sources[:1], str(corpus))[1]) == ["other-source"]
    assert check_maps.share_of(*blend("megatron", [("a", None), ("b", None)]), 1).wanted is None  # one pass of each


def test_every_id_of_a_file_is_looked_at_and_of_a_huge_one_a_sample(monkeypatch):
    tokens = np.ones(3000, np.uint16)
    tokens[1777] = 60_000
    monkeypatch.setattr(check, "_BLOCK", 128)
    assert check.measured(tokens, 1) == check.Measured(3000, 1, 60_000, 2999)
    for name, size in (("WHOLE_TOKENS", 2000), ("_SAMPLED_BLOCKS", 3), ("_SAMPLED_BLOCK", 10)):
        monkeypatch.setattr(check, name, size)
    assert check.measured(tokens, None) == check.Measured(30, 1, 1, 0)


def test_gpt_neox_493_overflow_of_slots_is_an_error_with_its_number(corpus):
    findings = check_maps.check_order(open_pair(corpus), neox(10**10), 8)
    assert codes(findings) == ["slots-overflow"]
    assert "samples" in findings[0].what


def test_empty_split_is_a_finding(corpus):
    empty = neox(5, split="1,0,0", part="test")
    assert codes(check_maps.check_order(open_pair(corpus), empty, 8)) == ["order-does-not-fit"]


def test_stale_maps_are_seen_after_corpus_seed_or_split_changed(tmp_path, corpus):
    file, order = open_pair(corpus), neox(100)
    write_maps(corpus, order, 8, tmp_path / "maps")
    assert codes(check_maps.check_maps(file, order, 8, tmp_path / "maps")) == ["maps"]
    assert set(codes(check_maps.check_maps(file, neox(100, seed=1), 8, tmp_path / "maps"))) == {"stale-map"}
    # NeoX's cache name holds neither the split nor anything of the corpus.
    assert "stale-map" in codes(check_maps.check_maps(file, neox(100, split="9,1,0"), 8, tmp_path / "maps"))
    write_pair(corpus, [file.sequence(i) for i in range(len(file) - 1)], "uint16")
    assert "stale-map" in codes(check_maps.check_maps(open_pair(corpus), order, 8, tmp_path / "maps"))


def test_maps_under_upstreams_cache_names_are_read(tmp_path, corpus):
    write_maps(corpus, neox(100), 8, tmp_path / "maps")
    for name in ("doc_idx", "sample_idx", "shuffle_idx"):
        (tmp_path / "maps" / f"{name}.npy").rename(tmp_path / "maps" / f"c_train_0_indexmap_100ns_8sl_1234s_{name}.npy")
    assert codes(check_maps.check_maps(open_pair(corpus), neox(100), 8, tmp_path / "maps")) == ["maps"]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", bytes(300)])
def test_damaged_maps_are_findings(tmp_path, corpus, content):
    write_maps(corpus, neox(100), 8, tmp_path / "maps")
    (tmp_path / "maps" / "sample_idx.npy").write_bytes(content)
    assert codes(check_maps.check_maps(open_pair(corpus), neox(100), 8, tmp_path / "maps")) == ["map-unreadable"]


def test_megatron_lm_907_nodes_with_other_maps_are_named(tmp_path, corpus):
    for node, seed in (("node0", 1), ("node1", 1), ("node2", 2)):
        write_maps(corpus, neox(100, seed=seed), 8, tmp_path / node)
    nodes = [str(tmp_path / f"node{n}") for n in range(3)]
    findings = check_maps.compare_folders(nodes)
    assert {f.where for f in findings} == {nodes[2]}
    assert check_maps.compare_folders(nodes[:2]) == []
    with pytest.raises(PretraceError, match="is no folder"):  # nothing compared is not the same
        check_maps.compare_folders([str(tmp_path / "absent"), nodes[0]])


def test_megatron_lm_1672_offsets_are_rebuilt_from_lengths(corpus):
    sound = corpus.with_suffix(".idx").read_bytes()
    _, lengths, _, _ = tokenfile.read_index(corpus.with_suffix(".idx"))
    wrong = bytearray(sound)
    at = 34 + 4 * len(lengths) + 8 * 7
    wrong[at : at + 8] = (-5).to_bytes(8, "little", signed=True)
    corpus.with_suffix(".idx").write_bytes(wrong)
    assert codes(found(corpus)) == ["damaged-pair"]
    assert check_maps.repair_offsets(corpus) == 1
    assert corpus.with_suffix(".idx").read_bytes() == sound


def test_offsets_are_not_rebuilt_from_lengths_that_do_not_fit_the_data(corpus):
    path = corpus.with_suffix(".bin")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(PretraceError, match="cannot be rebuilt"):
        check_maps.repair_offsets(corpus)


def test_maps_are_written_in_upstreams_dtypes(tmp_path, corpus):
    written = write_maps(corpus, neox(100), 8, tmp_path / "maps")
    assert [f["dtype"] for f in written["files"].values()] == ["int32", "int32", "uint32"]
    for name, about in written["files"].items():
        loaded = np.load(tmp_path / "maps" / name)
        assert (loaded.dtype.name, list(loaded.shape)) == (about["dtype"], about["shape"])
    assert isinstance(neox(1), NeoxOrder)
    with pytest.raises(PretraceError, match="has no maps"):
        map_spec(
            "olmo", num_samples=1, seed=1, split="", part="train", version="v1.0", extra_token=True, keep_partial=False
        )
