import numpy as np
import pytest

from evaluate_toys import bigram, document
from pretrace.evaluate.conventions import (
    TextConvention,
    chosen,
    cloze,
    count,
    hits,
    losses,
    measured,
    text_conventions,
)
from pretrace.evaluate.documents import ChoiceDocument, ClozeDocument

WORDS = TextConvention("word", "words of the page", "perplexity")
TOKENS = TextConvention("token", "tokens", "perplexity")


def value(documents, convention):
    return measured(documents, convention, losses(documents, convention)).value()


def test_lm_evaluation_harness_2301_words_are_not_tokens_and_documents_are_not_one_text():
    # Three documents of the bigram language: 4, 2 and 2 tokens; the middle one is two words.
    texts = ["aabb", "b b".replace(" ", ""), "ab"]
    pages = ["aabb", "b b", "ab"]
    documents = [document(i, t, bigram(t), page=p) for i, (t, p) in enumerate(zip(texts, pages, strict=True))]
    # -log2: aabb = 1 + 2 + log2(4/3) + 1; bb = 1 + 1; ab = 1 + log2(4/3): in all 7 + 2 log2(4/3) bits
    bits = 7 + 2 * np.log2(4 / 3)
    assert value(documents, WORDS) == pytest.approx(2 ** (bits / 4))
    assert value(documents, TOKENS) == pytest.approx(2 ** (bits / 8))
    separate = TextConvention("token", "tokens", "perplexity", "mean of documents")
    each = [2 ** ((4 + np.log2(4 / 3)) / 4), 2 ** (2 / 2), 2 ** ((1 + np.log2(4 / 3)) / 2)]
    assert value(documents, separate) == pytest.approx(np.mean(each))
    of_means = TextConvention("token", "tokens", "perplexity", "exp of the mean of documents")
    assert value(documents, of_means) == pytest.approx(np.exp(np.mean(np.log(each))))


def test_bits_per_byte_do_not_know_the_tokenizer():
    one = document(0, "abab", bigram("abab"))
    pairs = document(0, "abab", bigram("abab"))
    object.__setattr__(pairs, "n_tokens", 2)  # the same text and likelihood in two tokens of two letters
    bits = TextConvention("byte", "bytes of the page", "bits")
    assert value([one], bits) == value([pairs], bits)
    assert value([one], TOKENS) != value([pairs], TOKENS)


def test_the_harness_counts_the_empty_words_at_both_ends():
    page = " one two \n"
    text = document(0, page, np.zeros(len(page)))
    assert count(text, "words of the page", WORDS) == 4  # "", one, two, ""
    assert count(text, "words of the page, no empty ones", WORDS) == 2


def test_lm_evaluation_harness_1465_the_first_token_is_judged_by_what_stands_before_it():
    # After a begin token both letters are as likely; a model that saw "b" in its place would say the same, and one that saw
    # nothing it knows may say anything: only the first token moves.
    with_begin, without = document(0, "ab", bigram("ab")), document(0, "ab", [-23.0, np.log(0.75)])
    counted, left_out = TOKENS, TextConvention("token", "tokens", "perplexity", first=False)
    assert value([with_begin], counted) == pytest.approx((1 / (0.5 * 0.75)) ** 0.5)
    assert value([without], counted) > 100_000
    assert value([with_begin], left_out) == value([without], left_out) == pytest.approx(1 / 0.75)


def test_a_lost_newline_changes_what_is_scored_and_what_it_is_divided_by():
    text = "ab\n"
    lls = np.append(bigram("ab"), np.log(0.01))  # the newline is dear
    kept, lost = TOKENS, TextConvention("token", "tokens", "perplexity", newline=False)
    documents = [document(0, text, lls)]
    assert value(documents, kept) == pytest.approx((1 / (0.5 * 0.75 * 0.01)) ** (1 / 3))
    assert value(documents, lost) == pytest.approx((1 / (0.5 * 0.75)) ** 0.5)
    words = TextConvention("word", "words of the page", "perplexity", newline=False)
    assert count(documents[0], "words of the page", WORDS) == 2
    assert count(documents[0], "words of the page", words) == 1


def test_a_newline_inside_a_token_cannot_be_taken_off():
    text = document(0, "ab\n", bigram("ab"))
    object.__setattr__(text, "n_tokens", 2)
    object.__setattr__(text, "ends", np.array([1, 3]))  # the second token is "b\n"
    assert np.isnan(losses([text], TextConvention("token", "tokens", "perplexity", newline=False))).all()


QUESTION = ChoiceDocument(0, (-4.0, -6.0), ("yes", "certainly"), (1,), (1, 4), alone=(-1.0, -5.0))


def test_length_normalisation_moves_the_choice():
    # sums: -4 > -6. By characters: -4/3 < -6/9. By tokens: -4/1 < -6/4. Without the question: -4+1 < -6+5.
    assert chosen(QUESTION, "none") == 0
    assert chosen(QUESTION, "characters") == 1
    assert chosen(QUESTION, "tokens") == 1
    assert chosen(QUESTION, "without the question") == 1
    assert hits([QUESTION], "none").tolist() == [0.0]
    assert hits([QUESTION], "characters").tolist() == [1.0]


def test_characters_are_not_bytes():
    # "éé" is two characters and four bytes: -3/2 < -1.4/1 by characters, -3/4 > -1.4/1 by bytes
    accents = ChoiceDocument(0, (-3.0, -1.4), ("éé", "e"), (0,))
    assert chosen(accents, "characters") == 1
    assert chosen(accents, "bytes") == 0


def test_the_first_of_equal_choices_is_taken_as_numpy_does():
    assert chosen(ChoiceDocument(0, (-2.0, -2.0), ("a", "b"), (1,)), "none") == 0


def test_the_harness_s_cloze_perplexity_has_one_word_below_the_line():
    documents = [ClozeDocument(0, -2.0, True, " house", 1), ClozeDocument(1, -4.0, False, " castle", 3)]
    assert cloze(documents, "perplexity").value() == pytest.approx(np.exp(3))
    assert cloze(documents, "token_perplexity").value() == pytest.approx(np.exp(6 / 4))
    assert cloze(documents, "acc").value() == 0.5


def test_the_harness_s_own_conventions_come_first():
    first = text_conventions()[0]
    assert not first.departures
    assert len({c for c in text_conventions()}) == len(text_conventions())
