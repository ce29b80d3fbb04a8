import json

import pytest
import yaml

from evaluate_toys import choices_task, memory_task, samples
from evaluate_toys import row as toy_row
from pretrace.cli.console import plain
from pretrace.errors import PretraceError
from pretrace.evaluate.card import card, model_index
from pretrace.evaluate.harness_results import Figure, Results
from pretrace.evaluate.overview import Asked, overview, read_runs, scored_run
from pretrace.evaluate.rows import write_rows


def run(step, rights, name="hellaswag"):
    return scored_run(f"step{step}", [choices_task(rights, task=name, n_total=10042)], step)


EARLY, LATE = run(1000, [i % 4 == 0 for i in range(100)]), run(143000, [i % 4 < 3 for i in range(100)])


def published(*values):
    return Results("table", "x.csv", tuple(Figure("m", s, "hellaswag", "acc", v, 0.0046) for s, v in values), {})


def test_runs_of_a_series_stand_in_the_order_of_their_steps():
    found = overview([LATE, EARLY])
    assert found.series
    assert [r.step for r in found.runs] == [1000, 143000]
    assert found.compared[0].paired.distinguishable


def test_ours_stand_beside_published_figures_of_the_same_step():
    found = overview([EARLY, LATE], Asked(against=published((1000, 0.26), (143000, 0.30))))
    judged = {b.theirs.step: b.judgement for b in found.beside if b.metric == "acc"}
    assert judged == {1000: "not distinguishable", 143000: "different"}
    assert "not distinguishable on 100 rows" in found.beside[0].sentence()


def test_a_table_of_several_models_asks_for_one():
    results = Results(
        "table", "x.csv", (Figure("a", 1, "x", "acc", 0.5, 0.1), Figure("b", 1, "x", "acc", 0.5, 0.1)), {}
    )
    with pytest.raises(PretraceError, match="of 2 models"):
        overview([EARLY], Asked(against=results))
    with pytest.raises(PretraceError, match="no figures of c"):
        overview([EARLY], Asked(against=results, model="c"))


def test_rows_on_disk_become_a_run_with_its_step(tmp_path):
    folder = tmp_path / "step512"
    folder.mkdir()
    one = samples(toy_row(" yes", [-1.0, -0.5], gold=1), toy_row(" no", [-0.25], idx=1, gold=1), max_length=64)
    write_rows(folder / "samples-toy.jsonl.zst", one)
    (found,) = read_runs([folder])
    assert (found.name, found.step) == ("step512", 512)
    assert [(n.metric, n.value) for n in found.own] == [("acc", 1.0), ("acc_norm", 1.0), ("acc_bytes", 1.0)]
    assert found.tasks[0].documents[0].n_tokens == (2, 1)


def test_rows_without_a_step_stand_beside_the_last_published_one_or_one_that_is_named():
    run = scored_run("m", [choices_task([True] * 30 + [False] * 10)])
    theirs = published((1000, 0.26), (143000, 0.30))
    (last,) = overview([run], Asked(against=theirs)).beside
    assert last.theirs.step == 143000
    assert "(step 143,000)" in last.sentence()
    (named,) = overview([run], Asked(against=theirs, model=f"{theirs.models()[0]}@1000")).beside
    assert named.theirs.step == 1000
    with pytest.raises(PretraceError, match="'main' is no step"):
        overview([run], Asked(against=theirs, model="m@main"))


def test_a_folder_of_results_is_a_series(tmp_path):
    for step in (2, 10):
        folder = tmp_path / f"m-step-{step:08d}"
        folder.mkdir()
        one = samples(toy_row(" yes", [-1.0], gold=0), toy_row(" no", [-2.0], idx=1, gold=0))
        write_rows(folder / "samples-toy.jsonl.zst", one)
    found = overview(read_runs([tmp_path]))
    assert [run.step for run in found.runs] == [2, 10]
    assert found.series


def test_a_card_is_what_the_hub_reads_and_says_how_sure():
    text = card(LATE, "mine")
    front = yaml.safe_load(text.split("---")[1])
    assert front["model-index"] == model_index(LATE, "mine")
    metric = front["model-index"][0]["results"][0]["metrics"][0]
    assert (metric["type"], metric["value"], metric["args"]["rows"]) == ("acc", 0.75, 100)
    assert "| hellaswag | acc | 75.00% | 4.35 points |" in text
    assert "100 of 10,042 rows" in text


@pytest.mark.interop
def test_huggingface_hub_takes_the_index_apart_and_puts_it_together():
    hub = pytest.importorskip("huggingface_hub.repocard_data")
    name, results = hub.model_index_to_eval_results(model_index(LATE, "mine"))
    assert name == "mine"
    assert {(r.metric_type, r.metric_value) for r in results} >= {("acc", 0.75)}
    assert hub.eval_results_to_model_index(name, results)[0]["results"][0]["dataset"]["type"] == "Rowan/hellaswag"


def test_everything_is_plain_json():
    found = overview(
        [scored_run("m", [memory_task(128, lengths=[900, 700, 800])])],
        Asked(explain=["wikitext.token_perplexity=12.5"]),
    )
    text = json.dumps(plain(found.explained))
    assert json.loads(text)[0]["published"]["printed"] == "12.5"
