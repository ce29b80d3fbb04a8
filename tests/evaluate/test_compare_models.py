from dataclasses import replace

import pytest

from evaluate_toys import bigram, choices_task, document, memory_task
from pretrace.errors import PretraceError
from pretrace.evaluate.compare_models import compare
from pretrace.evaluate.documents import TaskDocuments


def test_two_models_on_a_hundred_rows_are_not_distinguishable_and_the_sentence_says_on_how_many():
    a = choices_task([i % 10 < 3 for i in range(100)], n_total=10042)
    b = choices_task([i % 10 < 3 or i == 7 for i in range(100)], n_total=10042)
    (found, *_) = compare([a], [b])
    assert not found.paired.distinguishable
    assert found.sentence().startswith("hellaswag acc: not distinguishable on 100 of 10,042 rows (standard errors 4.6")


def test_a_model_better_on_every_third_row_is_distinguishable():
    a, b = choices_task([True] * 90), choices_task([i % 3 > 0 for i in range(90)])
    found = compare([a], [b])[0]
    assert found.paired.distinguishable
    assert found.paired.difference.value == pytest.approx(1 / 3)


def test_texts_are_drawn_by_document():
    a, b = memory_task(64, lengths=[200] * 12), memory_task(32, lengths=[200] * 12)
    found = {d.metric: d for d in compare([a], [b])}
    assert found["word_perplexity"].n == 12
    assert found["token_perplexity"].paired.difference.value < 0
    assert found["bits_per_byte"].paired.distinguishable


def test_other_texts_under_the_same_number_are_refused():
    a = TaskDocuments("toy", (document(0, "ab", bigram("ab")),))
    b = TaskDocuments("toy", (document(0, "ba", bigram("ba")),))
    with pytest.raises(PretraceError, match="row 0 of toy has another text"):
        compare([a], [b])


def test_rows_that_one_of_them_lacks_are_counted_and_left_out():
    a, b = choices_task([True, False, True]), choices_task([True, False])
    found = compare([a], [b])[0]
    assert (found.n, found.left_out) == (2, 1)


def test_no_common_task_is_one_error():
    with pytest.raises(PretraceError, match="no task"):
        compare([choices_task([True])], [memory_task(8, lengths=[20])])


def test_losses_a_token_of_two_tokenizers_are_not_compared():
    a = memory_task(64, lengths=[200] * 12)
    fewer = tuple(replace(d, n_tokens=100, tokens=d.tokens[:100], seen=d.seen[:100]) for d in a.documents)
    metrics = {d.metric for d in compare([a], [replace(a, documents=fewer)])}
    assert metrics == {"word_perplexity", "byte_perplexity", "bits_per_byte"}
