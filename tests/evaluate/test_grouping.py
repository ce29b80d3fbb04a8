"""What the harness divides by and what it judged itself is taken from it, not guessed from texts."""

import warnings

import numpy as np
import pytest

from evaluate_toys import row, samples
from pretrace.evaluate.grouping import averaged, documents_of
from pretrace.evaluate.numbers import numbers


def numbers_of(*rows, **about):
    return {n.metric: n for n in numbers(documents_of(samples(*rows, **about))) if not n.departures}


@pytest.mark.parametrize(("delimiter", "texts"), [(" ", ("yes", "no")), ("", (" yes", " no")), ("\n", ("yes", "no"))])
def test_a_choice_is_its_text_without_the_task_s_own_delimiter(delimiter, texts):
    rows = [row(delimiter + text, [-1.0], idx=idx) for idx, text in enumerate(texts)]
    (document,) = documents_of(samples(*rows, delimiter=delimiter)).documents
    assert document.choices == texts


def test_a_file_that_says_no_delimiter_is_read_with_a_blank():
    (document,) = documents_of(samples(row(" yes", [-1.0]), row("  no", [-1.0], idx=1))).documents
    assert document.choices == ("yes", " no")


def test_the_harness_s_own_judgement_of_a_document_stands_above_ours():
    # by characters "aaaa" (-2 / 4) is chosen before "b" (-1 / 1); the harness, which knew other lengths, said wrong
    rows = [row(" aaaa", [-2.0], metrics={"acc_norm": 0.0}), row(" b", [-1.0], idx=1)]
    assert numbers_of(*rows)["acc_norm"].value == 0.0
    assert numbers_of(*[row(" aaaa", [-2.0]), rows[1]])["acc_norm"].value == 1.0


def test_options_that_are_contexts_have_no_length_here():
    rows = [row(" ran.", [-1.0], context=context, idx=idx) for idx, context in enumerate(("Tim", "Anna"))]
    assert set(numbers_of(*rows)) == {"acc"}


def test_a_question_without_text_has_its_choices_twice_where_others_have():
    def document(doc_id, context):
        asked = [row(f" {c}", [-n], doc_id=doc_id, idx=n, context=context) for n, c in enumerate("ab")]
        return asked + [row(f" {c}", [-1.0], doc_id=doc_id, idx=n, context="") for n, c in enumerate("ab", 2)]

    first, second = documents_of(samples(*document(0, "Q"), *document(1, ""))).documents
    assert first.choices == second.choices == ("a", "b")
    assert second.alone == (-1.0, -1.0)


@pytest.mark.parametrize(("counts", "page"), [((3, 8), "one two "), ((2, 7), "one two"), ((9, 99), None)])
def test_the_page_is_the_text_that_has_the_words_and_bytes_divided_by(counts, page):
    words, size_bytes = counts
    metrics = {"word_perplexity": [-4.0, words], "byte_perplexity": [-4.0, size_bytes]}
    text = row(
        "one two", [-4.0], kind="rolling", context="", document={"page": "x", "raw": "one two "}, metrics=metrics
    )
    (document,) = documents_of(samples(text)).documents
    assert document.page == page


def test_a_text_of_one_token_is_divided_by_no_zero():
    texts = [row("word", [-1.0], kind="rolling", context="", doc_id=n) for n in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers_of(*texts)["token_perplexity"].value == pytest.approx(np.e)


def test_what_only_the_harness_can_judge_has_an_interval_too():
    rows = [
        row("text", [], kind="generate", doc_id=n, metrics={"exact_match,strict": n % 2, "bleu": "x"})
        for n in range(20)
    ]
    (number,) = numbers(documents_of(samples(*rows, means=["exact_match,strict"])))
    assert (number.metric, number.value, number.family) == ("exact_match,strict", 0.5, "accuracy")
    assert number.interval.low == pytest.approx(0.299, abs=1e-3)  # Wilson's, 10 of 20


def test_a_metric_that_is_no_mean_of_its_documents_is_not_taken_for_one():
    rows = [row("x", [-1.0], doc_id=n, metrics={"acc": float(n), "perplexity": -1.0, "f1": (n, 0)}) for n in range(2)]
    assert averaged(rows, {"acc": 0.5, "perplexity": 2.718, "f1": 0.0, "missing": 1.0}) == ("acc",)
