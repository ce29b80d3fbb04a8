"""Tasks beyond the three: greedy writing, groups, examples before a row. Ours beside lm-eval's own backend."""

import json

import pytest

import evaluate_lab as lab
from pretrace.errors import PretraceError
from pretrace.evaluate import data_files, engine, subject
from pretrace.evaluate.compute import Computed
from pretrace.evaluate.resolve import Wanted
from pretrace.evaluate.rows import read_rows
from pretrace.evaluate.tasks import loading

WRITES = """
task: writes
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 24, do_sample: {sample}}}
metric_list: [{{metric: exact_match}}]
"""
GROUP = """
group: both
task: [first, second]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
"""
CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}, train: {rows}}}}}
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc}}]
"""
STORIES = [{"q": "Once upon a time, there was a", "a": "x"}, {"q": "Lily and Tom went to the", "a": "y"}]
CHOICES = [{"q": f"Tim saw {n} dogs. He was", "choices": ["happy.", "a table."], "label": n % 2} for n in range(4)]


def folder_with(tmp_path, rows, **definitions):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in definitions.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def evaluated(folder, task, **wanted):
    asked = engine.Asked((task,), (), folder, Wanted(**wanted), folder / "out")
    (found,) = engine.evaluate(subject.subjects([str(lab.STORIES)], config=None, tokenizer=None), asked)
    return found.summary()


def test_greedy_writing_is_the_harnesss(tmp_path):
    text = WRITES.format(rows=tmp_path / "rows.jsonl", sample="false")
    folder = folder_with(tmp_path, STORIES, writes=text)
    found = evaluated(folder, "writes")
    ours = [row.continuation for row in read_rows(found["samples"]["writes"]).rows]
    with loading((), folder) as loader:
        samples, results = lab.theirs(lab.STORIES, loader.load("writes"), 512, batch_size=1)
    assert ours == [sample["resps"][0][0] for sample in samples["writes"]]
    assert all(ours)
    assert found["results"]["writes"]["exact_match"] == results["writes"]["exact_match,none"]


def test_a_task_that_samples_is_refused(tmp_path):
    folder = folder_with(tmp_path, STORIES, writes=WRITES.format(rows=tmp_path / "rows.jsonl", sample="true"))
    with pytest.raises(PretraceError, match="samples its answers"):
        evaluated(folder, "writes")


def test_examples_before_a_row_are_the_harnesss(tmp_path):
    text = CHOICE.format(rows=tmp_path / "rows.jsonl", name="first")
    folder = folder_with(tmp_path, CHOICES, first=text)
    rows = read_rows(evaluated(folder, "first", fewshot=2)["samples"]["first"]).rows
    assert all(row.context.count("Tim saw") == 3 for row in rows)
    assert evaluated(folder, "first")["samples"]["first"] != evaluated(folder, "first", fewshot=2)["samples"]["first"]


@pytest.mark.slow  # a group needs the harness's whole index: 6 s of one core
def test_a_group_has_the_number_of_its_tasks_together(tmp_path):
    texts = {name: CHOICE.format(rows=tmp_path / "rows.jsonl", name=name) for name in ("first", "second")}
    found = evaluated(folder_with(tmp_path, CHOICES, both=GROUP, **texts), "both")
    assert found["results"].keys() == {"both", "first", "second"}
    assert found["results"]["both"]["acc"] == found["results"]["first"]["acc"]
    assert found["denominators"].keys() == {"first", "second"}


def test_few_shot_examples_come_from_a_file_of_their_own(tmp_path):
    texts = CHOICE.format(rows=tmp_path / "rows.jsonl", name="first").replace(f", train: {tmp_path / 'rows.jsonl'}", "")
    folder = folder_with(tmp_path, CHOICES, first=texts)
    shots = tmp_path / "shots.jsonl"
    shots.write_text("".join(json.dumps({**row, "q": "Ann ran. She was"}) + "\n" for row in CHOICES))
    data = data_files.parse([f"first={tmp_path / 'rows.jsonl'}", f"first:train={shots}"])
    asked = engine.Asked(("first",), data, folder, Wanted(fewshot=1), tmp_path / "out")
    (found,) = engine.evaluate(subject.subjects([str(lab.STORIES)], config=None, tokenizer=None), asked)
    rows = read_rows(found.summary()["samples"]["first"]).rows
    assert all(row.context.startswith("Ann ran. She was") and "Tim saw" in row.context for row in rows)


WINOGRANDE = [
    {"sentence": "Tim gave Tom the ball because _ was kind.", "option1": "Tim", "option2": "Tom", "answer": "1"},
    {"sentence": "Ann hid from Sue since _ was angry.", "option1": "Ann", "option2": "Sue", "answer": "2"},
]
ALGEBRA = [{"question": "1 plus 1?", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "abstract_algebra"}]


@pytest.mark.parametrize(
    ("task", "rows", "golds"), [("winogrande", WINOGRANDE, [0, 1]), ("mmlu_abstract_algebra", ALGEBRA, [1])]
)
def test_built_in_tasks_of_other_shapes_take_local_rows(tmp_path, task, rows, golds):
    """winogrande's options are contexts, and its target is a text; mmlu's definitions quote their keys."""
    folder = folder_with(tmp_path, rows)
    data = data_files.parse([f"{task}={folder / 'rows.jsonl'}"])
    asked = engine.Asked((task,), data, None, Wanted(fewshot=0), tmp_path / "out")
    (found,) = engine.evaluate(subject.subjects([str(lab.STORIES)], config=None, tokenizer=None), asked)
    scored = read_rows(found.summary()["samples"][task]).rows
    assert [row.gold for row in scored if row.document] == golds
    with loading(data) as loader:
        samples, results = lab.theirs(lab.STORIES, loader.load(task), 512)
    assert found.summary()["results"][task]["acc"] == results[task]["acc,none"]
    theirs = [answer[0] for sample in samples[task] for (answer,) in sample["resps"]]
    assert [row.loglikelihood for row in scored] == pytest.approx(theirs, abs=1e-4)


def test_a_prompt_that_is_cut_is_noted_and_one_that_is_refused_is_left_out(tmp_path):
    text = WRITES.format(rows=tmp_path / "rows.jsonl", sample="false")
    folder = folder_with(tmp_path, [*STORIES, {"q": "Lily ran. " * 30, "a": "z"}], writes=text)
    found = evaluated(folder, "writes", max_length=64)
    assert found["notes"]["writes"] == {"context-cut": 1}
    assert found["denominators"]["writes"]["tokens"] > 0
    refused = evaluated(folder, "writes", max_length=64, truncation="refuse")
    assert refused["denominators"]["writes"]["left_out"] == [2]


def test_a_text_that_was_written_once_is_kept(tmp_path, monkeypatch):
    text = WRITES.format(rows=tmp_path / "rows.jsonl", sample="false")
    folder = folder_with(tmp_path, STORIES, writes=text)
    first = read_rows(evaluated(folder, "writes")["samples"]["writes"]).rows
    monkeypatch.setattr(Computed, "_opened", lambda self: pytest.fail("the model is not needed"))
    again = read_rows(evaluated(folder, "writes")["samples"]["writes"]).rows
    assert [row.continuation for row in again] == [row.continuation for row in first]
