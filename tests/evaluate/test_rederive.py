from dataclasses import replace

import numpy as np
import pytest

from evaluate_toys import bigram, choices_task, document, memory_task
from pretrace.errors import PretraceError
from pretrace.evaluate.documents import ChoiceDocument, TaskDocuments
from pretrace.evaluate.published import parse
from pretrace.evaluate.rederive import explain, explain_all
from pretrace.evaluate.rederive_words import lines


def bigram_task(*texts, page=lambda text: text):
    documents = tuple(document(i, t, bigram(t), page=page(t)) for i, t in enumerate(texts))
    return TaskDocuments("wikitext", documents, 8, len(documents))


TASK = bigram_task("aabb", "bb", "ab", page=lambda text: f" {text[:1]} {text[1:]} ")


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [("37.5", 37.5, 0.05), ("wikitext=29", 29, 0.5), ("hellaswag.acc_norm=28.9%", 28.9, 0.05), ("1.20e3", 1200, 5)],
)
def test_a_figure_carries_its_printed_precision(text, value, half):
    found = parse(text)
    assert found.value == value
    assert found.half == pytest.approx(half)


@pytest.mark.parametrize("text", ["", "wikitext", "wikitext=", "=3", "x=nan", "x=1e999", "x=--3"])
def test_what_is_no_figure_is_one_error(text):
    with pytest.raises(PretraceError):
        parse(text)


def test_the_harness_s_own_number_is_found_first():
    bits = 7 + 2 * np.log2(4 / 3)  # as in test_conventions; four words a page: "", two, ""
    found = explain([TASK], f"wikitext.word_perplexity={2 ** (bits / 12):.3f}")
    assert found.outcome == "harness"
    assert found.matches[0].departures == ()


def test_a_figure_divided_by_tokens_is_named():
    bits = 7 + 2 * np.log2(4 / 3)
    found = explain([TASK], f"wikitext.word_perplexity={2 ** (bits / 8):.4f}")
    assert found.outcome == "convention"
    assert "it is token_perplexity, not word_perplexity" in found.matches[0].departures
    assert "reproduced by another convention" in next(lines(found))


def test_lm_evaluation_harness_2478_an_accuracy_that_is_the_normalised_one_is_named():
    # By sums the first is chosen, by characters the second, which is right: acc 0, acc_norm 100%.
    long = ChoiceDocument(0, (-4.0, -6.0), ("yes", "certainly"), (1,))
    found = explain([TaskDocuments("hellaswag", (long, replace(long, doc_id=1)), 64, 2)], "hellaswag.acc=100%")
    assert found.outcome == "convention"
    assert found.matches[0].departures == ("it is acc_norm, not acc",)


def test_the_convention_with_the_fewest_departures_is_said():
    found = explain([TASK], "wikitext.word_perplexity=1.65")
    kinds = [len(n.departures) for n in found.matches]
    assert kinds == sorted(kinds)


def test_a_coarse_figure_that_some_number_meets_by_chance_proves_nothing():
    long = ChoiceDocument(0, (-4.0, -6.0), ("yes", "certainly"), (1,))  # acc_norm right, acc wrong
    task = TaskDocuments(
        "hellaswag", (*(replace(long, doc_id=i) for i in range(3)), replace(long, doc_id=3, gold=(0,))), 64, 4
    )
    found = explain([task], "hellaswag.acc=0.8")  # acc is 25%, acc_norm (two ways) and acc_bytes 75%
    assert (found.outcome, len(found.matches)) == ("coarse", 3)
    assert "more digits would tell" in next(lines(found))
    assert explain([task], "hellaswag.acc=75.0%").outcome == "convention"


def test_no_convention_prints_a_figure_of_another_model():
    found = explain([TASK], "wikitext.word_perplexity=900.1")
    assert found.outcome == "none"
    assert not found.matches
    assert "No convention prints 900.1" in next(lines(found))


def test_how_sure_is_said_before_anything_matches():
    task = choices_task([1] * 29 + [0] * 71, n_total=10042)
    text = list(lines(explain([task], "hellaswag.acc_norm=31.2%")))
    assert "not distinguishable" in text[0]
    assert "100 of 10,042 rows" in text[0]
    assert "standard error 4.6 points" in text[1]


def test_a_figure_far_off_is_not_excused_by_few_rows():
    task = choices_task([1] * 29 + [0] * 71, n_total=10042)
    found = explain([task], "hellaswag.acc_norm=78.2%")
    assert not found.indistinct
    assert "not distinguishable" not in " ".join(lines(found))


def test_a_wikitext_score_at_512_is_explained_from_what_was_scored_at_1024():
    lengths = [3000, 5000, 4200, 7000, 2600]
    long = memory_task(1024, lengths=lengths, noise=1.0, depth=4.0)
    short = memory_task(512, lengths=lengths, noise=1.0, depth=4.0)
    at_512 = explain([short], "wikitext.token_perplexity=1").ours.value
    found = explain([long], f"wikitext.token_perplexity={at_512:.2f}")
    assert found.outcome == "possible"
    assert any(n.departures[-1] == "disjoint windows of 512" for n in found.possible)
    text = " ".join(lines(found))
    assert "score with disjoint windows of" in text
    assert "Context length alone reaches" in text


def test_scored_at_both_lengths_the_figure_is_exact():
    lengths = [3000, 5000]
    both = [memory_task(n, lengths=lengths, noise=1.0, depth=4.0) for n in (1024, 512)]
    at_512 = explain(both[1:], "wikitext.token_perplexity=1").ours.value
    found = explain(both, f"wikitext.token_perplexity={at_512:.4f}")
    assert found.outcome == "convention"
    assert found.matches[0].departures == ("scored in windows of 512",)


def test_how_much_of_a_gap_the_length_could_make_is_said():
    task = memory_task(256, lengths=[2000, 3000], noise=0.5)
    ours = explain([task], "wikitext.token_perplexity=1").ours.value
    found = explain([task], f"wikitext.token_perplexity={ours * 3:.2f}")
    assert "context length alone explains at most" in " ".join(lines(found))
    best = max(at.share for at in found.context)
    assert 0 < best < 1


def test_a_figure_without_a_task_is_looked_for_in_all():
    found = explain_all([choices_task([1, 0, 1, 0]), TASK], "PUBLISHED=50.0")
    assert [f.task for f in found] == ["hellaswag", "wikitext"]
    assert found[0].outcome == "harness"


def test_an_unknown_task_or_metric_names_what_there_is():
    with pytest.raises(PretraceError, match="no rows of piqa") as error:
        explain([TASK], "piqa=3")
    assert "wikitext" in error.value.mend
    with pytest.raises(PretraceError, match="no number called f1"):
        explain([TASK], "wikitext.f1=3")


def test_matches_by_chance_are_counted():
    found = explain([TASK], "wikitext.word_perplexity=2")
    assert found.by_chance > 1  # "2" is anything from 1.5 to 2.5: half of all numbers here


def test_rows_scored_under_another_setting_are_named_by_it():
    bos = TaskDocuments("wikitext", TASK.documents, 8, 3, settings=(("bos", "always"),))
    texts = ("aabb", "bb", "ab")
    never = tuple(
        document(i, t, np.append(-3.0, bigram(t)[1:]), page=f" {t[:1]} {t[1:]} ") for i, t in enumerate(texts)
    )
    other = TaskDocuments("wikitext", never, 8, 3, settings=(("bos", "never"),))
    goal = explain([other], "wikitext.word_perplexity=1").ours.value
    found = explain([bos, other], f"wikitext.word_perplexity={goal:.4f}")
    assert found.matches[0].departures == ("scored with bos never",)


def test_a_text_without_blanks_has_no_word_perplexity_beyond_a_float():
    text = "ab" * 3000
    task = TaskDocuments("wikitext", (document(0, text, bigram(text)),), 8, 1)
    found = explain([task], "wikitext=1.44")
    assert found.ours.metric == "token_perplexity"
    assert found.outcome == "none"
    with pytest.raises(PretraceError, match="no number called word_perplexity"):
        explain([task], "wikitext.word_perplexity=37.5")
