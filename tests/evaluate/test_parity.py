"""Our numbers are those of lm-eval's own hf backend on the same rows. One process: importing the harness takes seconds."""

import numpy as np
import pytest

import evaluate_lab as lab
from pretrace.evaluate import data_files, engine, subject
from pretrace.evaluate.resolve import Wanted
from pretrace.evaluate.rows import read_rows
from pretrace.evaluate.tasks import loading, quiet

TASKS = ("lambada_openai", "hellaswag", "wikitext")
# float32: sums of some hundred log-likelihoods of about 10, in another order.
NATS_A_TOKEN = 1e-4


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return {
        "lambada_openai": lab.rows_of("lambada_openai", folder, range(4)),
        "hellaswag": lab.rows_of("hellaswag", folder, range(5)),
        "wikitext": lab.short_pages(folder),
    }


@pytest.fixture(scope="module")
def loaded(rows):
    quiet()
    with loading(data_files.parse(f"{task}={path}" for task, path in rows.items())) as loader:
        yield {task: loader.load(task) for task in TASKS}


def ours(folder, rows, out, tasks=TASKS, **wanted):
    data = data_files.parse(f"{task}={path}" for task, path in rows.items() if task in tasks)
    asked = engine.Asked(tuple(tasks), data, None, Wanted(**wanted), out)
    (found,) = engine.evaluate(subject.subjects([str(folder)], config=None, tokenizer=None), asked)
    return found


def same_rows(found, task, samples):
    """Every log-likelihood and greedy flag of the harness's samples."""
    scored = read_rows(f"{found.folder}/samples-{task}.jsonl.zst").rows
    for sample in samples:
        mine = [row for row in scored if row.doc_id == sample["doc_id"]]
        for row, (answer,) in zip(mine, sample["resps"], strict=True):
            total, greedy = answer if isinstance(answer, (tuple, list)) else (answer, row.greedy)
            assert abs(row.loglikelihood - float(total)) <= NATS_A_TOKEN * len(row.tokens)
            assert row.greedy == greedy
            assert np.isclose(row.logprobs.astype(np.float64).sum(), row.loglikelihood, atol=1e-3)
            assert (row.context + row.continuation) == "".join(sample["arguments"][row.idx])


def check(folder, loaded, rows, out, max_length, **wanted):
    found = ours(folder, rows, out, max_length=max_length, batch_tokens=300, **wanted)
    for task in TASKS:
        samples, results = lab.theirs(folder, loaded[task], max_length)
        same_rows(found, task, samples[task])
        values = found.summary()["results"][task]
        for metric, value in values.items():
            assert value == pytest.approx(results[task][f"{metric},none"], rel=1e-4), (task, metric)
    return found


def test_gpt2_scores_as_the_harnesss_own_backend(tmp_path, loaded, rows):
    found = check(lab.gpt2(tmp_path / "gpt2"), loaded, rows, tmp_path / "out", 64)
    # Contexts of HellaSwag are longer than that: what was cut is said.
    assert found.summary()["notes"]["hellaswag"]["context-cut"] > 0


def test_a_real_model_scores_as_the_harnesss_own_backend(tmp_path, loaded, rows):
    check(lab.STORIES, loaded, rows, tmp_path / "out", 512)


@pytest.mark.slow
@pytest.mark.parametrize("family", [lab.gpt_neox, lab.llama])
def test_other_families_score_as_the_harnesss_own_backend(tmp_path, loaded, rows, family):
    check(family(tmp_path / "model"), loaded, rows, tmp_path / "out", 100)


@pytest.mark.slow
@pytest.mark.parametrize("family", [lab.gpt_neox, lab.gptj])
def test_through_transformers_the_numbers_are_the_same(tmp_path, loaded, rows, family):
    check(family(tmp_path / "model"), loaded, rows, tmp_path / "out", 100, through="transformers")
