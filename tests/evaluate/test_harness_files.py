import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets import GOLDEN, unpacked
from pretrace.errors import PretraceError
from pretrace.evaluate.against import beside, first_sentence
from pretrace.evaluate.documents import ChoiceDocument, ClozeDocument, RollingDocument, WrittenDocument
from pretrace.evaluate.harness_results import read_results
from pretrace.evaluate.harness_samples import read_samples
from pretrace.evaluate.numbers import numbers
from pretrace.evaluate.reading import read_documents

KEYS = ("acc", "acc,none", "acc_stderr", "results", "model_args", "task", "effective", "revision")
HARNESS = GOLDEN / "evaluate" / "harness-0.4.13"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    for packed in HARNESS.glob("*.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


@pytest.fixture(scope="module")
def published(run):
    return {(f.task, f.metric): f for f in read_results(next(run.glob("results_*"))).figures}


def test_every_metric_of_the_harness_is_made_again_from_its_samples(run, published):
    tasks = read_documents([run])
    found = {(n.task, n.metric): n for t in tasks for n in numbers(t) if not n.departures}
    for name, figure in published.items():
        assert found[name].value == pytest.approx(figure.value, rel=1e-12), name
    assert len(published) == 7


def test_the_standard_error_of_accuracies_is_the_harness_s(run, published):
    found = {(n.task, n.metric): n for t in read_documents([run]) for n in numbers(t) if not n.departures}
    for metric in ("acc", "acc_norm"):
        name = ("local_hellaswag", metric)
        assert found[name].interval.stderr == pytest.approx(published[name].stderr, rel=1e-12)


def test_documents_say_how_many_rows_there_are_in_all(run):
    totals = {t.task: (len(t.used), t.n_total, t.max_length) for t in read_documents([run])}
    assert totals["local_hellaswag"] == (8, 10042, 256)
    assert totals["local_lambada_openai"] == (8, 5153, 256)


def test_samples_become_documents_of_their_kind(run):
    kinds = {t.task: type(t.documents[0]) for t in read_documents([run])}
    assert kinds == {
        "local_hellaswag": ChoiceDocument, "local_lambada_openai": ClozeDocument, "local_wikitext": RollingDocument,
    }  # fmt: skip


def sample(tmp_path, *lines):
    path = tmp_path / "samples_toy_2024-05-01T10-00-00.000000.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


OLD = {
    "doc_id": 3, "doc": {"gold": 1}, "target": "1", "arguments": [["Q", " yes"], ["Q", " no"]],
    "resps": [[[-1.5, False]], [[-0.5, True]]], "filtered_resps": [[-1.5, False], [-0.5, True]], "acc": 1.0,
}  # fmt: skip


def test_the_samples_of_0_4_0_hold_numbers_and_lists(tmp_path):
    (document,) = read_documents([sample(tmp_path, OLD)])[0].documents
    assert document == ChoiceDocument(3, (-1.5, -0.5), ("yes", "no"), (1,))


def test_the_first_versions_wrote_one_array_a_task(tmp_path):
    path = tmp_path / "pretrained__gpt2_hellaswag.jsonl"
    path.write_text(json.dumps([OLD, {**OLD, "doc_id": 4}], indent=2))
    (task,) = read_documents([path])
    assert (task.task, [d.doc_id for d in task.documents]) == ("hellaswag", [3, 4])


def test_a_nan_of_the_harness_is_a_fault_and_not_a_score(tmp_path):
    bad = {**OLD, "resps": [[["nan", "False"]], [[-0.5, True]]]}
    task = read_documents([sample(tmp_path, OLD, {**bad, "doc_id": 4})])[0]
    assert [d.doc_id for d in task.faulty] == [4]
    assert "not-finite" in task.faulty[0].fault
    assert numbers(task)[0].interval.n == 1


def test_lm_evaluation_harness_1053_an_empty_continuation_is_named(tmp_path):
    empty = {**OLD, "arguments": [["Q", ""], ["Q", " no"]]}
    task = read_documents([sample(tmp_path, empty)])[0]
    assert not task.used
    assert "empty-continuation" in task.faulty[0].fault


@pytest.mark.parametrize("text", [" ", "  "])
def test_a_blank_that_a_task_adds_before_nothing_is_an_empty_continuation(tmp_path, text):
    choice = {**OLD, "arguments": [["Q", text], ["Q", " no"]]}
    cloze = {**OLD, "arguments": [["Q", text]], "resps": [[["-1.0", "True"]]], "target": text}
    for line in (choice, cloze):
        (document,) = read_documents([sample(tmp_path, line)])[0].faulty
        assert "empty-continuation" in document.fault


def test_answers_of_a_second_filter_are_not_counted_twice(tmp_path):
    lines = [{**OLD, "filter": "none"}, {**OLD, "filter": "other"}]
    assert len(read_samples(sample(tmp_path, *lines)).rows) == 2


def test_where_the_options_stand_in_the_question_the_right_one_is_told_by_the_score(tmp_path):
    swapped = {**OLD, "arguments": [["A x", " end"], ["B x", " end"]], "target": " end", "doc": {}, "metrics": ["acc"]}
    right, wrong = {**swapped, "acc": 1.0}, {**swapped, "acc": 0.0, "doc_id": 4}
    documents = read_documents([sample(tmp_path, right, wrong)])[0].documents
    assert [d.gold for d in documents] == [(1,), (0,)]


@pytest.mark.parametrize(
    "text", ["", "{", "[]\n", '{"doc_id": 1}\n', '{"doc_id": 1, "resps": [[1]], "arguments": []}\n', "\x00\xff\n"]
)
def test_what_is_no_sample_is_one_error(tmp_path, text):
    path = tmp_path / "samples_toy_2024-05-01T10-00-00.000000.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PretraceError):
        read_documents([path])


def test_a_folder_without_rows_is_one_error(tmp_path):
    with pytest.raises(PretraceError, match="no rows were found"):
        read_documents([tmp_path])


def test_the_old_layout_has_no_filters_and_names_its_step():
    found = read_results(unpacked("results") / "results" / "example_pythia160m_step143000.json")
    one = next(f for f in found.figures if (f.task, f.metric) == ("lambada_openai", "acc"))
    assert found.layout == "lm-eval before 0.4"
    assert one.step == 143000
    assert one.num_fewshot == 0
    assert one.value == pytest.approx(0.3283524160683097)
    assert one.stderr > 0


def test_the_published_table_of_the_pythia_suite_is_read_whole():
    found = read_results(unpacked("results") / "results" / "pythia_v1_evals.csv")
    assert len(found.figures) == 9814
    assert "pythia-160m" in found.models()


def test_the_single_file_and_the_table_agree():
    folder = unpacked("results") / "results"
    single = read_results(folder / "example_pythia160m_step143000.json").figures
    table = [f for f in read_results(folder / "pythia_v1_evals.csv").figures if f.model == "pythia-160m"]
    found = beside(single, table, step=143000, num_fewshot=0)
    assert found
    assert all(abs(b.difference) < 1 for b in found)
    assert first_sentence(found).startswith(f"{sum(b.judgement == 'different' for b in found)} of {len(found)} figures")


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", '{"results": 3}', "{", "task,metric,value\nx,acc,high\n", "\x1f\x8bxx"]
)
def test_what_is_no_file_of_results_is_one_error(tmp_path, text):
    path = tmp_path / "results"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PretraceError):
        read_results(path)


def test_our_own_results_are_read_with_their_step_and_rows(tmp_path):
    ours = {
        "checkpoint": "run/step-00000128", "step": 128, "harness": "lm-eval 0.4.13", "max_length": 512,
        "results": {"hellaswag": {"acc": 0.25, "acc_norm": 0.5}}, "denominators": {"hellaswag": {"documents": 8, "of": 600}},
        "versions": {"hellaswag": 1.0},
    }  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps(ours))
    found = read_results(path)
    assert found.layout == "pretrace"
    assert [(f.step, f.metric, f.value, f.n) for f in found.figures] == [
        (128, "acc", 0.25, 8),
        (128, "acc_norm", 0.5, 8),
    ]


def test_of_tasks_that_generate_what_the_harness_judged_is_read(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    judged = {"exact_match": 1.0, "metrics": ["exact_match"]}
    made = {**OLD, "arguments": [["Q", {"until": ["."]}]], "resps": [["an answer"]], **judged}
    (folder / "samples_gsm_2024-05-01T10-00-00.000000.jsonl").write_text(json.dumps(made) + "\n")
    sample(folder, OLD)
    found = {task.task: task.documents for task in read_documents([folder])}
    assert found["gsm"] == (WrittenDocument(3, "Q", {"exact_match": 1.0}),)
    assert set(found) == {"gsm", "toy"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_is_results_or_one_error(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("any") / "results.json"
    path.write_text(json.dumps({"results": value, "config": value, "versions": value, "n-samples": value}))
    try:
        found = read_results(path)
    except PretraceError:
        return
    assert all(isinstance(figure.value, float) for figure in found.figures)
