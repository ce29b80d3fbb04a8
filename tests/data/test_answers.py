"""What a step read, which steps saw a document or a text, how much was seen before."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import GOLDEN, unpacked
from pretrace.data import answers, search, tokenizer
from pretrace.data.order import DataSpec, open_order
from pretrace.data.repeats import repeat_curve
from pretrace.data.token_bytes import token_bytes
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
        whole = len(order) // batch * batch  # what stands beyond the last whole update is read by none
        expected = [p for p in range(whole) if any(s.document == document for s in order.documents(p))]
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
    with pytest.raises(PretraceError, match="no source 1"):  # of a single source too
        answers.where_document(opened(neox(33), C2), 3, 8, 1)


def test_unknown_document_is_an_error():
    with pytest.raises(PretraceError, match="no document 10"):
        answers.where_document(opened(neox(33), C2), 10, 4)


def test_updates_bound_what_was_seen():
    order = opened(neox(33), C2)
    seen = answers.where_document(order, 3, 4)
    assert answers.where_document(order, 3, 4, updates=5).steps == tuple(s for s in seen.steps if s < 5)


def test_text_is_found_whatever_stands_around_it(tmp_path):
    loaded = tokenizer.load(NEOX)
    texts = [f"Chapter {n}. It was the {n}th night of the long voyage, and nobody slept." for n in range(30)]
    texts[17] = "He saidthe quick brown fox jumpedover it."  # glued at both ends: other first and last tokens
    write_pair(tmp_path / "p", [np.append(loaded.encode(t), 0) for t in texts], "uint16")
    order = opened(neox(90), tmp_path / "p")
    holding = answers.where_document(order, 17, 4)
    for text in ("the quick brown fox jumped", "saidthe quick br", "ick brown fox", "fox"):
        seen = answers.where_text(order, text, loaded, 4)
        assert seen.positions
        assert set(seen.positions) <= set(holding.positions)
    assert answers.where_text(order, "the quick brown dog jumped", loaded, 4).positions == ()
    with pytest.raises(PretraceError, match="everywhere"):
        answers.where_text(order, "", loaded, 4)


def test_text_that_ends_one_document_and_begins_the_next_is_in_neither(tmp_path):
    loaded = tokenizer.load(NEOX)
    write_pair(
        tmp_path / "p", [loaded.encode(t) for t in ("it was late", " and dark", " that day it rained")], "uint16"
    )
    order = opened(neox(6), tmp_path / "p", seq_len=3)
    assert answers.where_text(order, "late and dark", loaded, 1).positions == ()
    assert answers.where_text(order, "and dark", loaded, 1).positions


C4 = GOLDEN / "neox_index" / "c4_blend_two"


@pytest.mark.parametrize("order", [
    lambda: opened(neox(9), C2), lambda: opened(neox(60), C2),
    lambda: opened(neox(90), C4 / "corpus_0", C4 / "corpus_1", seq_len=16, weights=(0.1, 0.9)),  # the second is overdrawn
])  # fmt: skip
def test_fast_and_plain_repeat_curves_agree(order):
    for updates in (None, 3):
        fast, plain = (repeat_curve(order(), 2, updates, plain=slow) for slow in (False, True))
        np.testing.assert_array_equal(fast.share, plain.share)
        assert fast.first_step == plain.first_step


def test_repeats_are_tokens_not_documents(tmp_path):
    # One document of 40 tokens, read twice in file order: samples 0..3 are the first pass, 5..8 the second, and sample 4,
    # which no pass holds whole, begins with 0 new tokens: 40 = 5 samples of 8. A document seen in part is not all repeats.
    write_pair(tmp_path / "p", [np.arange(40)], "uint16")
    stream = {"family": "stream", "epochs": 2, "document_seed": None, "sample_seed": 3, "mix_epochs": True}
    order = opened(stream, tmp_path / "p")
    samples = order.sample_ids(range(9)).tolist()
    read, expected = set(), []
    for sample in samples:  # each sample is 8 tokens: block sample % 5 of the document
        expected.append(float(sample % 5 in read))
        read.add(sample % 5)
    assert repeat_curve(order, 1).share.tolist() == expected
    assert 0 in expected[1:]  # by documents every step but the first would be a repeat


def test_search_by_bytes_finds_what_a_search_of_the_whole_text_finds(monkeypatch):
    loaded = tokenizer.load(NEOX)
    texts = ["Naïve Kent\u2019s — “no”.\n\nThe the THE   aaaa aaaaaaa", "tea-tray\t1234 and 12 34, the tea"]
    tokens = np.concatenate([np.append(loaded.encode(t), 0) for t in texts])
    table = token_bytes(loaded)
    words = [table[t] for t in tokens.tolist()]
    raw, stops = b"".join(words), np.cumsum([len(w) for w in words])
    assert raw == "".join(t + "<|endoftext|>" for t in texts).encode()
    monkeypatch.setattr(search, "_BLOCK", 5)
    for text in ("he ", "aa", "a-tray\t12", "\u2019s — “no”.\n\nThe", "34, the tea<|end", "absent"):
        wanted = text.encode()
        places = [at for at in range(len(raw)) if raw.startswith(wanted, at)]
        expected = [(int(np.sum(stops <= at)), int(np.sum(stops < at + len(wanted))) + 1) for at in places]
        assert search.find_text(tokens, text, loaded) == expected, text


def test_pythia_144_repeats_are_spread_and_no_step_begins_the_second_pass(tmp_path):
    # 60 documents of one sample each; 1.5 passes asked for: NeoX shuffles both passes jointly.
    write_pair(tmp_path / "p", [np.full(8, d + 1) for d in range(60)], "uint16")
    order = opened(neox(89), tmp_path / "p")
    curve = repeat_curve(order, 4)
    assert curve.first_step is not None
    assert curve.first_step < 60 // 4  # long before one pass is over
    late = curve.share[len(curve.share) // 2 :]
    assert 0 < late.min() < 1 or (late < 1).any()  # nor is the rest all repeats
    assert repeat_curve(opened(neox(50), tmp_path / "p"), 4).first_step is None  # one pass: none


def test_flat_files_say_that_they_do_not_know_documents(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "t.bin")
    order = open_order(DataSpec(
        sources=[{"path": str(tmp_path / "t.bin"), "format": "raw", "dtype": "uint16"}], seq_len=8, documents=NO_RULES,
        order={"family": "olmo", "epochs": 1, "first_epoch": 0, "seed": 1, "drop_last": True, "world_size": 1,
               "grad_accum_steps": 1, "micro_batch": 2}))  # fmt: skip
    with pytest.raises(PretraceError, match="does not know its documents"):
        answers.where_document(order, 0, 2)
    with pytest.raises(PretraceError, match="does not know that"):
        repeat_curve(order, 2)


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
