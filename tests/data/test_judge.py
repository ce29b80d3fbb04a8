"""The judge: every k-th document and every unusual one has the reference's ids; a text has the ids of its pieces."""

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assets import unpacked
from pretrace.data import encoders, judge, pieces, tokenizer
from pretrace.data.unusual import unusual, words
from pretrace.errors import PretraceError

NEOX = next(unpacked("tokenizers").rglob("tokenizer.json"))
GPT2 = next(unpacked("tokenizers").rglob("merges.txt")).parent
LOADED = {path: tokenizer.load(path) for path in (NEOX, GPT2)}


class _Wrong(encoders.Reference):
    """A backend that knows nothing of combining marks, nor of the word "wrong"."""

    name = "a fast one"

    def __call__(self, texts):
        return super().__call__([t.replace("\u0301", "").replace("wrong", "right") for t in texts])


class _Counting(encoders.Reference):
    """A reference that counts the characters it is asked for."""

    seen = 0

    def __call__(self, texts):
        self.seen += sum(map(len, texts))
        return super().__call__(texts)


def judged(every=1000, **more):
    reference = _Counting(LOADED[NEOX], "token")
    return judge.Judged(_Wrong(tokenizer.load(NEOX), "token"), reference, LOADED[NEOX], every, **more)


def test_first_difference_stops_the_run_with_the_document():
    texts = ["fine"] * 20 + ["cafe\u0301", "e\u0301"]
    with pytest.raises(PretraceError, match="token 0 is 6357, expected 68") as caught:
        judged()(texts, 1, [f"doc {i}" for i in range(22)])
    assert caught.value.where == "doc 20"
    assert judged()(texts[:20], 1, [""] * 20).judged == 0
    assert judged()(texts[:20], 990, [""] * 20).judged == 1  # document 1,000


def test_a_long_document_is_judged_from_its_first_to_its_last_character():
    usual = "a line of usual text\n" * 3000
    one = judged()
    assert one([usual], 1, ["doc"]).judged == 0
    assert one([usual + "\u65e5\n" + usual], 1, ["doc"]).judged == 1
    assert one.reference.seen < 100  # each distinct piece once
    for place in ("wrong" + usual + "\u65e5", "\u65e5" + usual + "wrong", usual + "cafe\u0301\n" + usual):
        with pytest.raises(PretraceError, match="gives other ids"):
            judged()([place], 1, ["doc"])


def test_a_document_that_may_not_be_cut_is_judged_whole():
    one, text = judged(), "some words <|endoftext|> some words"
    assert one([text], 1, ["doc"]).judged == 1
    assert one.reference.seen == len(text)


def test_ids_of_the_reference_take_the_place_of_others_where_that_is_declared():
    texts = ["fine", "cafe\u0301 \u65e5", "fine"]
    made = judged(on_difference="reference")(texts, 1, ["a", "b", "c"])
    ids, lengths = encoders.Reference(LOADED[NEOX], "token")(texts)
    np.testing.assert_array_equal(made.ids, ids)
    np.testing.assert_array_equal(made.lengths, lengths)
    assert made.replaced == ("b",)
    # A usual document that differs says that others do, which nobody judges: no replacing.
    with pytest.raises(PretraceError, match="gives other ids"):
        judged(every=1, on_difference="reference")(["wrong"], 1, ["a"])


@pytest.mark.parametrize(
    ("text", "odd"),
    [("It\u2019s \u2014 \u201cso\u201d\u2026", False), ("naïve Ærø", False), ("日本", True), ("e\u0301", True),
     ("a\u00a0b", True), ("\u200b", True), ("\u2028", True), ("\u212a", True), ("\x00", True), ("é\x00", True), ("\x7f", True),
     ("<|x|>", True), ("🙂", True), ("\ufeff", True), ("ж", True), ("→ ─", False), ("\ud800", True), ("a\tb\r\n", False)],
)  # fmt: skip
def test_unusual_code_points_and_special_tokens_are_seen(text, odd):
    assert unusual(["plain", text, "plain"], words(["<|x|>", "<|y|>"])) == ([1] if odd else [])


# What the law is about: letters, digits, signs, apostrophes, spaces of every kind, marks, signs that NFC replaces.
SPACES = ["  ", "    ", "\u2000", "\u2028", "\u3000", "\u200b", "\u1680", "\u180e"]
MARKS = ["e\u0301", "\u0301", "\u1100\u1161", "ж", "日本", "\uff13", "²", "🙂", "\u037e", "\u212a", "\u07f3\u07fd"]
WORDS = ["'s", "'ll", "don't", "<|endoftext|>", "<|", "|>", "endoftext", *"aZ0 9'-<|>_.\n\r\t\x0b\x1c\x85\xa0é"]
PARTS = st.sampled_from(SPACES + MARKS + WORDS)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=30).map("".join), st.sampled_from([NEOX, GPT2]), st.booleans())
@example("it's <|endof\u037etext|>  \u212a \u00a0 x", NEOX, False)
@example("a" * 40 + " " * 60 + "b\n" * 30, NEOX, False)
def test_ids_of_a_text_are_the_ids_of_its_pieces(text, path, as_text):
    loaded = LOADED[path]
    reference = encoders.Reference(loaded, "text" if as_text else "token")
    found = pieces.cutter(loaded)
    if found.may_cut(text):
        raw = text.encode()
        cuts = [0, *pieces.cut_places(raw).tolist(), len(raw)]
        parts = [raw[a:b].decode() for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(reference(parts)[0], reference([text])[0])
        (expected,) = judge._ByPiece(reference, found)([text])
        assert np.array_equal(expected, reference([text])[0])


def test_a_tokenizer_whose_texts_may_not_be_cut_is_known():
    def changed(change):
        loaded = tokenizer.train(["abc"], 257, specials=("<e>",))
        change(loaded.impl)
        return pieces.cutter(loaded)

    from tokenizers import AddedToken, normalizers, pre_tokenizers

    assert changed(lambda impl: None) is not None
    assert changed(lambda impl: setattr(impl, "normalizer", normalizers.NFKC())) is None
    assert changed(lambda impl: setattr(impl, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))) is None
    assert changed(lambda impl: impl.add_tokens([AddedToken("<m>", lstrip=True)])) is None
    assert changed(lambda impl: setattr(impl.model, "dropout", 0.1)) is None
    assert changed(lambda impl: impl.add_tokens([AddedToken("a b", normalized=False)])).may_cut("a b") is False


@pytest.mark.parametrize("backend", encoders.FAST)
def test_fast_backend_agrees_on_every_code_point_block(backend):
    reference = encoders.Reference(LOADED[NEOX], "token")
    points = [c for c in range(0, 0x11000, 7) if not 0xD800 <= c < 0xE000] + list(range(0x1F300, 0x1F700, 3))
    texts = [f"a{chr(c)}b {chr(c)}{chr(c)} 1{chr(c)}" for c in points]
    for got, expected in zip(encoders.FAST[backend](str(NEOX), "token")(texts), reference(texts)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", encoders.FAST)
def test_fast_backend_reads_vocab_json_with_merges_txt(backend):
    gpt2 = NEOX.parent.parent / "gpt2"
    texts = ["Hello world", "It's naïve —\n\n 12,345 x<|endoftext|>y", ""]
    ids, lengths = encoders.FAST[backend](str(gpt2), "token")(texts)
    expected = [tokenizer.load(gpt2).encode(text).tolist() for text in texts]
    assert expected[0] == [15496, 995]
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected


USUAL = st.text("abcXYZ019 '-_.,:;(){}<>|/\\\"\n\t\réßĀ—“…→", max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(USUAL | st.sampled_from(["  ", "don't", "'LL", "\n\n", "https://", "    return", "the"]), max_size=12).map(
        "".join
    )
)
def test_fast_backends_agree_on_usual_text(text):
    expected = encoders.Reference(LOADED[NEOX], "token")([text])[0]
    for fast in fast_encoders():
        np.testing.assert_array_equal(fast([text])[0], expected)


@cache
def fast_encoders():
    return [kind(str(NEOX), "token") for kind in encoders.FAST.values()]


def test_gigatoken_orders_two_marks_of_nko_otherwise_and_the_judge_says_so():
    text = "\u07f3\u07fd"  # found in a file of Unicode examples
    fast, reference = encoders.Gigatoken(str(NEOX), "token"), encoders.Reference(LOADED[NEOX], "token")
    with pytest.raises(PretraceError, match=r"gigatoken .* gives other ids"):
        judge.Judged(fast, reference, LOADED[NEOX], 1000)([text], 1, ["doc"])
    made = judge.Judged(fast, reference, LOADED[NEOX], 1000, "reference")([text], 1, ["doc"])
    assert made.ids.tolist() == LOADED[NEOX].encode(text).tolist()
