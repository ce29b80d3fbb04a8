"""What a step read, which steps saw a document or a text, how much was seen before."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import GOLDEN, unpacked
from pretrace.data import answers, tokenizer
from pretrace.data.order import DataSpec, open_order
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError

NO_RULES = {"eod_id": None, "mask_after_eod": False, "separate_attention": False, "restart_positions": False}
C2 = GOLDEN / "neox_index" / "c2_three_epochs_edges" / "corpus"
NEOX = next(unpacked("tokenizers").rglob("tokenizer.json"))


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


def opened(order, *prefixes, seq_len=8, weights=(None,)):
    sources = [{"path": str(p), "format": "bin_idx", "weight": w} for p, w in zip(prefixes, weights)]
    return open_order(DataSpec(sources=sources, seq_len=seq_len, order=order, documents=NO_RULES))


def test_a_step_shows_its_samples_documents_and_hash():
    order = opened(neox(33), C2)
    shown = answers.show(order, 2, 4)
    assert [s.position for s in shown] == [8, 9, 10, 11]
    row = order.tokens(range(9, 10))[0]
    assert shown[1].tokens_sha256 == hashlib.sha256(row.astype("<i8").tobytes()).hexdigest()
    assert sum(s.stop - s.start for s in shown[1].documents) == 9
    with pytest.raises(PretraceError, match="39 samples"):
        answers.show(order, 9, 5)


@given(seed=st.integers(0, 50), batch=st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_where_is_the_inverse_of_show(seed, batch):
    order = opened(neox(33, seed), C2)
    for document in range(10):
        seen = answers.where_document(order, document, batch)
        expected = [p for p in range(len(order)) if any(s.document == document for s in order.documents(p))]
        assert list(seen.positions) == expected
        assert list(seen.steps) == sorted({p // batch for p in expected})


def test_where_in_a_blend_asks_one_source():
    folder = GOLDEN / "neox_index" / "c4_blend_two"
    order = opened(neox(200), folder / "corpus_0", folder / "corpus_1", seq_len=16, weights=(0.7, 0.3))
    for source in (0, 1):
        seen = answers.where_document(order, 3, 8, source)
        assert list(seen.positions) == [
            p for p in range(len(order)) if any((s.source, s.document) == (source, 3) for s in order.documents(p))]  # fmt: skip
    with pytest.raises(PretraceError, match="no source 2"):
        answers.where_document(order, 3, 8, 2)


def test_unknown_document_is_an_error():
    with pytest.raises(PretraceError, match="no document 10"):
        answers.where_document(opened(neox(33), C2), 10, 4)


def test_text_is_found_whatever_stands_around_it(tmp_path):
    loaded = tokenizer.load(NEOX)
    texts = [f"Chapter {n}. It was the {n}th night of the long voyage, and nobody slept." for n in range(30)]
    texts[17] = "He saidthe quick brown fox jumpedover it."  # glued at both ends: other first and last tokens
    write_pair(tmp_path / "p", [np.append(loaded.encode(t), 0) for t in texts], "uint16")
    order = opened(neox(90), tmp_path / "p")
    seen = answers.where_text(order, "the quick brown fox jumped", loaded, 4)
    holding = answers.where_document(order, 17, 4)
    assert seen.positions
    assert set(seen.positions) <= set(holding.positions)
    assert answers.where_text(order, "the quick brown dog jumped", loaded, 4).positions == ()
    with pytest.raises(PretraceError, match="too few"):
        answers.where_text(order, "fox", loaded, 4)


@pytest.mark.parametrize("n", [9, 33, 60])
def test_fast_and_plain_repeat_curves_agree(n):
    order = opened(neox(n), C2)
    fast, plain = answers.repeat_curve(order, 2), answers.repeat_curve(order, 2, plain=True)
    np.testing.assert_array_equal(fast.share, plain.share)
    assert fast.first_step == plain.first_step


def test_pythia_144_repeats_are_spread_and_no_step_begins_the_second_pass(tmp_path):
    # 60 documents of one sample each; 1.5 passes asked for: NeoX shuffles both passes jointly.
    write_pair(tmp_path / "p", [np.full(8, d + 1) for d in range(60)], "uint16")
    order = opened(neox(89), tmp_path / "p")
    curve = answers.repeat_curve(order, 4)
    assert curve.first_step is not None
    assert curve.first_step < 60 // 4  # long before one pass is over
    late = curve.share[len(curve.share) // 2 :]
    assert 0 < late.min() < 1 or (late < 1).any()  # nor is the rest all repeats
    assert answers.repeat_curve(opened(neox(50), tmp_path / "p"), 4).first_step is None  # one pass: none


def test_flat_files_say_that_they_do_not_know_documents(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "t.bin")
    order = open_order(DataSpec(
        sources=[{"path": str(tmp_path / "t.bin"), "format": "raw", "dtype": "uint16"}], seq_len=8, documents=NO_RULES,
        order={"family": "olmo", "epochs": 1, "first_epoch": 0, "seed": 1, "drop_last": True, "world_size": 1,
               "grad_accum_steps": 1, "micro_batch": 2}))  # fmt: skip
    with pytest.raises(PretraceError, match="does not know its documents"):
        answers.where_document(order, 0, 2)
    with pytest.raises(PretraceError, match="counted by document"):
        answers.repeat_curve(order, 2)


def test_text_in_a_flat_file_is_found_in_every_window_that_holds_it(tmp_path):
    loaded = tokenizer.load(NEOX)
    ids = loaded.encode(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    )
    ids.astype("<u2").tofile(tmp_path / "t.bin")
    order = open_order(DataSpec(
        sources=[{"path": str(tmp_path / "t.bin"), "format": "raw", "dtype": "uint16"}], seq_len=4, documents=NO_RULES,
        order={"family": "llmc", "epochs": 1, "shuffle_seed": None, "world_size": 1, "micro_batch": 1}))  # fmt: skip
    seen = answers.where_text(order, " three four five six seven", loaded, 1)
    text = [loaded.decode(row) for row in order.tokens(range(len(order)))]
    assert [i for i in range(len(order)) if set(seen.positions) >= {i}] == list(seen.positions)
    assert all(any(word in text[p] for word in ("three", "four", "five", "six", "seven")) for p in seen.positions)
    assert {p for p in range(len(order)) if "four" in text[p] or "five" in text[p]} <= set(seen.positions)


def test_answers_are_plain_json():
    from pretrace.cli.console import plain

    shown = plain(answers.show(opened(neox(33), C2), 0, 2))
    assert json.loads(json.dumps(shown))[0].keys() == {"position", "sample", "documents", "tokens_sha256", "text"}
