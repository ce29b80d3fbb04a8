"""lm-evaluation-harness#1053, #4055: context and continuation are encoded as one text and cut at the context's length."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from pretrace.evaluate.encode import encode_pairs, encode_texts
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.text import TextCoder

# ": C" is one token, as the thread has it.
VOCAB = {"<e>": 0, "A": 1, ":": 2, " ": 3, "C": 4, " C": 5, ": C": 6, "B": 7}
MERGES = [(" ", "C"), (":", " C")]


def coder():
    return TextCoder(Tokenizer(BPE(dict(VOCAB), list(MERGES))), False, None, 0, "<e>", "toy", "toy")


def settings(**changes):
    values = {"max_length": 8, "truncation": "left", "bos": "tokenizer", "prefix": 0, "dtype": "float32", "through": "decoder",
              "device": "cpu", "limit": None, "fewshot": None, "batch_tokens": 64, "threads": 1}  # fmt: skip
    return Settings(**{**values, **changes})


def pair(context, continuation, **changes):
    (found,) = encode_pairs(coder(), [(context, continuation)], settings(**changes))
    return found


def codes(asked):
    return [fault.code for fault in asked.faults]


def test_a_continuation_that_a_token_swallows_is_said_to_be_empty():
    asked = pair("A:", " C")
    assert codes(asked) == ["token-across-join", "empty-continuation"]
    assert asked.parts == ()


def test_a_token_across_the_join_is_scored_as_the_harness_does_and_noted():
    asked = pair("A:", " CB")
    (request,) = asked.parts
    assert (request.context, request.continuation) == ((1, 2), (7,))  # whole: A, ": C", B; cut after two
    assert codes(asked) == ["token-across-join"]
    assert "[2]" in asked.faults[0].words
    assert "[6, 7]" in asked.faults[0].words


def test_texts_that_do_not_join_are_scored_on_their_own_tokens():
    asked = pair("A", " CB")
    (request,) = asked.parts
    assert (request.context, request.continuation) == ((1,), (5, 7))
    assert asked.starts == (0, 2)
    assert codes(asked) == []


def test_spaces_at_the_end_of_a_context_are_scored_with_the_continuation():
    (request,) = pair("A ", "CB").parts
    assert (request.context, request.continuation) == ((1,), (5, 7))
    assert pair("A ", "CB").starts == (-1, 1)  # the first token begins in the context


def test_a_bare_text_is_scored_after_the_prefix_token():
    (request,) = pair("", "AB").parts
    assert (request.context, request.continuation) == ((0,), (1, 7))


@pytest.mark.parametrize(("bos", "context"), [("always", (0, 1)), ("never", (1,)), ("tokenizer", (1,))])
def test_the_begin_token_is_where_it_is_declared_to_be(bos, context):
    """lm-evaluation-harness#1465: a model trained with a begin token has perplexity in the billions without it."""
    assert pair("A", "B", bos=bos).parts[0].context == context


def test_a_context_that_does_not_fit_is_cut_from_the_left_and_said_to_be():
    asked = pair("ABABABABAB", "BB")  # 10 + 2 tokens, and the model reads 8 of the first 11
    (request,) = asked.parts
    assert request.context == (7, 1, 7, 1, 7, 1, 7)
    assert len(request.context + request.continuation[:-1]) == 8
    assert [(f.code, f.words) for f in asked.faults] == [("context-cut", "3 of 10 tokens")]


def test_truncation_can_be_refused():
    asked = pair("ABABABABAB", "BB", truncation="refuse")
    assert codes(asked) == ["context-too-long"]
    assert asked.parts == ()


def test_a_continuation_above_max_length_is_not_scored():
    assert codes(pair("A", "B" * 9)) == ["continuation-too-long"]
    assert codes(pair("A", "B" * 8)) == []


def test_every_token_of_a_text_is_scored_once():
    (asked,) = encode_texts(coder(), ["AB" * 10], settings())
    assert [len(part.continuation) for part in asked.parts] == [8, 8, 4]
    assert asked.tokens == (1, 7) * 10
    assert asked.parts[0].context == (0,)
    assert len(asked.parts[2].context) == 8 - 3  # the last window is full: its tokens have context


def test_an_empty_text_has_no_number():
    (asked,) = encode_texts(coder(), [""], settings())
    assert codes(asked) == ["empty-continuation"]


def test_windows_and_pairs_are_the_harnesss():
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    for n in (1, 7, 8, 9, 16, 17, 30):
        (asked,) = encode_texts(coder(), ["B" * n], settings())
        theirs = [make_disjoint_window(w) for w in get_rolling_token_windows([7] * n, 0, 8, 1)]
        assert [(p.context + p.continuation[:-1], p.continuation) for p in asked.parts] == [
            ((*a, *b[:-1]), tuple(b)) for a, b in theirs
        ]


def test_published_files_of_gpt2_are_read_with_their_end_token(tmp_path):
    from assets import unpacked
    from pretrace.evaluate.text import open_tokenizer

    found = open_tokenizer(Path(unpacked("tokenizers")) / "tokenizers" / "gpt2")
    assert found.prefix == 50256
    (encoded,) = found.encode(["Hello world"], None)
    assert encoded.ids == (15496, 995)
    assert encoded.starts == (0, 5)


@pytest.mark.parametrize("continuation", ["", " ", "\n"])
def test_a_blank_continuation_is_none(continuation):
    assert codes(pair("A", continuation)) == ["empty-continuation"]
