import re

import numpy as np

from evaluate_toys import choices_task, memory_task
from pretrace.evaluate.documents import ClozeDocument, TaskDocuments
from pretrace.evaluate.harness_results import Figure, Results
from pretrace.evaluate.overview import Asked, overview, scored_run
from pretrace.report.evaluate import page_of
from pretrace.report.page import render


def run(step, share, depth=4.0):
    right = np.random.default_rng(step).random(200) < share
    cloze = tuple(ClozeDocument(i, -1.0 - i % 3, i % 4 == 0, " end", 2) for i in range(40))
    tasks = [
        choices_task(right, n_total=10042),
        TaskDocuments("lambada_openai", cloze, 512, 5153),
        memory_task(256, lengths=[1500, 2300, 1700], noise=0.5, depth=depth),
    ]
    return scored_run(f"step{step}", tasks, step)


def html(found):
    return render(page_of(found))


def sentence(text):
    return re.sub(r"<[^>]+>", "", re.search(r'class="verdict[^>]*>(.*?)</p>', text, re.DOTALL)[1]).strip("✓✗? \n")


def test_a_page_of_an_explained_figure_begins_with_its_verdict_and_how_sure():
    text = html(
        overview([run(10, 0.3)], Asked(explain=["wikitext.token_perplexity=9999.5"], conventions=True), command="rows")
    )
    assert sentence(text).startswith("No convention prints 9999.5")
    assert "standard error" in text.split('class="lead"')[1][:200]
    for title in (
        "what the length of the windows alone does",
        "Figures",
        "Conventions",
        "loss by position",
        "Model card",
    ):
        assert title in text


def test_a_page_of_a_series_plots_every_metric_with_published_ones_beside():
    theirs = Results("table", "x", tuple(Figure("p", s, "hellaswag", "acc", 0.3, 0.005) for s in (10, 20)), {})
    text = html(overview([run(10, 0.25), run(20, 0.3)], Asked(against=theirs)))
    assert "Over the steps" in text
    assert "Ours beside published" in text
    assert "figures differ by more than their intervals" in sentence(text)


def test_two_runs_without_steps_are_told_apart_or_not():
    a, b = (scored_run(name, [choices_task([i % 3 == k for i in range(60)])]) for k, name in enumerate("ab"))
    text = html(overview([a, b]))
    assert sentence(text) == "0 of 3 metrics tell a from b."
    assert "not distinguishable" in text


def test_rows_that_could_not_be_scored_are_listed():
    bad = TaskDocuments(
        "lambada_openai", (ClozeDocument(0, -1.0, True, " x", 1), ClozeDocument(7, float("nan"), False, " y"))
    )
    text = html(overview([scored_run("m", [bad])]))
    assert "Rows without a score" in text
    assert "no finite log-likelihood" in text


def test_the_page_asks_no_other_host_and_escapes_names():
    task = choices_task([True, False], task="<script>alert(1)</script>")
    text = html(overview([scored_run("<b>x</b>", [task])]))
    assert "<script>alert" not in text
    assert "<b>x</b>" not in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
