"""Faults by row, and evaluations that were stopped. The harness and a small NeoX with its real tokenizer."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import evaluate_lab as lab
from pretrace.errors import PretraceError
from pretrace.evaluate import data_files, engine, subject
from pretrace.evaluate.resolve import Wanted
from pretrace.evaluate.result import combined
from pretrace.evaluate.rows import read_rows
from pretrace.files import write_json
from pretrace.score import network

TASK = """
task: toy
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
metadata: {{version: 3.0}}
"""
GOOD = [{"q": f"The sky on day {i} is", "choices": [" blue", " dark green", " red"], "label": i % 3} for i in range(6)]
EMPTY = {"q": "The sky is", "choices": [" blue", ""], "label": 1}
POISON = {"q": "The sky is purple and", "choices": [" blue", " red"], "label": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model in which the embedding of ` purple` is no number."""
    folder = lab.gpt_neox(tmp_path_factory.mktemp("model"))
    (word,) = lab.tokenizer_of(folder)(" purple")["input_ids"]
    weights = load_file(folder / "model.safetensors")
    weights["gpt_neox.embed_in.weight"][word] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def asked(tmp_path, rows, **wanted):
    folder = tmp_path / "tasks"
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "toy.yaml").write_text(TASK.format(rows=folder / "rows.jsonl"))
    return engine.Asked(("toy",), (), folder, Wanted(**wanted), tmp_path / "out")


def evaluated(model, wanted, **more):
    (found,) = engine.evaluate(subject.subjects([str(model)], config=None, tokenizer=None), wanted, **more)
    return found


def test_rows_that_cannot_be_scored_are_named_and_left_out(tmp_path, model):
    mixed = [GOOD[0], EMPTY, *GOOD[1:4], POISON, *GOOD[4:]]
    found = evaluated(model, asked(tmp_path, mixed)).summary()
    (tmp_path / "clean").mkdir()
    clean = evaluated(model, asked(tmp_path / "clean", GOOD)).summary()
    assert found["results"] == clean["results"]
    assert found["denominators"]["toy"] == {**clean["denominators"]["toy"], "of": 8, "left_out": [1, 5]}
    assert found["notes"]["toy"] == {"empty-continuation": 1, "not-finite": 2}
    rows = read_rows(found["samples"]["toy"]).rows
    assert [[f.code for f in row.faults] for row in rows if row.doc_id == 1] == [[], ["empty-continuation"]]
    assert all(np.isnan(row.loglikelihood) and not row.scored for row in rows if row.doc_id == 5)
    assert [dict(row.metrics) for row in rows if row.document and row.doc_id in (1, 5)] == [{}, {}]


def test_with_no_document_left_there_is_no_number(tmp_path, model):
    found = evaluated(model, asked(tmp_path, [POISON, EMPTY])).summary()
    assert found["results"] == {}
    assert found["denominators"]["toy"]["documents"] == 0


def test_a_stopped_evaluation_goes_on_and_ends_in_the_same_bits(tmp_path, model, monkeypatch):
    whole = evaluated(model, asked(tmp_path, GOOD, batch_tokens=8))
    real = network.score

    def stopped(*args, **kwargs):
        for n, answered in enumerate(real(*args, **kwargs)):
            if n == 4:
                raise KeyboardInterrupt
            yield answered

    (tmp_path / "stopped").mkdir()
    wanted = asked(tmp_path / "stopped", GOOD, batch_tokens=8)
    monkeypatch.setattr(network, "score", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluated(model, wanted)
    monkeypatch.setattr(network, "score", real)
    seen = []
    again = evaluated(model, wanted, begin=lambda *_: lambda done, total, unit: seen.append((done, total)))
    assert 0 < seen[0][0] < seen[-1][0] == seen[-1][1]  # the first report counts what the stopped one kept
    rows = [read_rows(one.summary()["samples"]["toy"]).rows for one in (whole, again)]
    assert [r.logprobs.tobytes() for r in rows[0]] == [r.logprobs.tobytes() for r in rows[1]]


def lambada(tmp_path, n):
    data = data_files.parse([f"lambada_openai={lab.rows_of('lambada_openai', tmp_path, range(n))}"])
    return engine.Asked(("lambada_openai",), data, None, Wanted(), tmp_path / "out")


def test_what_is_finished_needs_neither_model_nor_harness(tmp_path, model, monkeypatch):
    from pretrace.evaluate import networks, tasks

    first = evaluated(model, lambada(tmp_path, 3))
    monkeypatch.setattr(tasks.Loader, "load", lambda *_: pytest.fail("the task was loaded again"))
    monkeypatch.setattr(networks, "open_network", lambda *_: pytest.fail("the model was loaded again"))
    assert evaluated(model, lambada(tmp_path, 3)).summary() == first.summary()


def test_a_definition_of_ones_own_is_read_again(tmp_path, model):
    wanted = asked(tmp_path, GOOD)
    assert evaluated(model, wanted).summary()["versions"] == {"toy": 3.0}
    definition = tmp_path / "tasks" / "toy.yaml"
    definition.write_text(definition.read_text().replace("version: 3.0", "version: 4.0"))
    assert evaluated(model, wanted).summary()["versions"] == {"toy": 4.0}
    assert evaluated(model, asked(tmp_path, GOOD[:2])).summary()["denominators"]["toy"]["documents"] == 2


def test_a_larger_limit_computes_only_the_rows_that_are_new(tmp_path, model):
    evaluated(model, asked(tmp_path, GOOD, limit=4))
    seen = []
    evaluated(model, asked(tmp_path, GOOD), begin=lambda *_: lambda done, total, unit: seen.append((done, total)))
    assert seen == [(16, 24), (24, 24)]  # 6 documents of 4 tokens, of which 4 were known; 2 fit one batch


def test_a_file_of_another_content_is_another_result(tmp_path, model):
    for n in (3, 5):
        found = evaluated(model, lambada(tmp_path, n)).summary()
        assert found["denominators"]["lambada_openai"]["documents"] == n


def test_a_row_with_fewer_options_than_all_others_is_noted(tmp_path, model):
    rows = [{**GOOD[0], "q": f"Sky {i}"} for i in range(20)]
    rows[7]["choices"] = rows[7]["choices"][:2]
    found = evaluated(model, asked(tmp_path, rows)).summary()
    assert found["notes"]["toy"] == {"options-differ": 2}


def test_tasks_and_rows_that_are_not_there_are_named(tmp_path, model):
    wanted = asked(tmp_path, GOOD)
    rows = data_files.parse([f"hellaswag={tmp_path / 'tasks' / 'rows.jsonl'}"])
    with pytest.raises(PretraceError, match="rows for hellaswag, which is not evaluated"):
        evaluated(model, engine.Asked(("toy",), rows, wanted.include, wanted.wanted, wanted.out))
    with pytest.raises(PretraceError, match="rows of hellaswag are not on this machine"):
        evaluated(model, engine.Asked(("hellaswag",), (), None, Wanted(), wanted.out))


def test_learned_positions_end_where_the_model_ends(tmp_path):
    folder = lab.gpt2(tmp_path / "gpt2", n_positions=32)
    with pytest.raises(PretraceError, match="max_length 64, and the model has 32 positions"):
        evaluated(folder, asked(tmp_path, GOOD, max_length=64))


def test_documents_that_a_task_cannot_read_are_named(tmp_path, model):
    rows = [*GOOD, {"q": "The sky is", "choices": None, "label": 0}]
    with pytest.raises(PretraceError, match="the task toy cannot be used: documents 6"):
        evaluated(model, asked(tmp_path, rows))


def test_rows_without_the_keys_of_the_task_are_named(tmp_path, model):
    path = tmp_path / "other.jsonl"
    path.write_text('{"story": "a b"}\n' * 3)
    wanted = engine.Asked(
        ("lambada_openai",), data_files.parse([f"lambada_openai={path}"]), None, Wanted(), tmp_path / "out"
    )
    with pytest.raises(PretraceError, match="the task lambada_openai cannot use these rows") as error:
        evaluated(model, wanted)
    assert str(path) in error.value.where


def test_a_right_answer_that_is_no_option_is_not_counted_as_wrong(tmp_path, model):
    found = evaluated(model, asked(tmp_path, [*GOOD, {**GOOD[0], "label": 9}])).summary()
    assert found["notes"]["toy"] == {"gold-not-there": 3}
    assert found["denominators"]["toy"]["left_out"] == [6]


def test_the_row_with_which_a_task_cannot_be_loaded_is_named(tmp_path, model):
    path = lab.rows_of("hellaswag", tmp_path, range(6))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[4]["label"] = "none"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = engine.Asked(("hellaswag",), data_files.parse([f"hellaswag={path}"]), None, Wanted(), tmp_path / "out")
    with pytest.raises(PretraceError, match="cannot use these rows: row 4: ValueError"):
        evaluated(model, wanted)


def test_a_split_that_a_task_has_not_is_named(tmp_path, model):
    rows = data_files.parse([f"lambada_openai:tset={lab.rows_of('lambada_openai', tmp_path, range(2))}"])
    with pytest.raises(PretraceError, match="lambada_openai has no split 'tset'") as error:
        evaluated(model, engine.Asked(("lambada_openai",), rows, None, Wanted(), tmp_path / "out"))
    assert "it has test" in error.value.mend


def test_all_tasks_are_loaded_before_the_first_is_run(tmp_path, model, monkeypatch):
    wanted = lambada(tmp_path, 2)
    monkeypatch.setattr(network, "score", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(PretraceError, match="rows of hellaswag are not on this machine"):
        evaluated(model, engine.Asked(("lambada_openai", "hellaswag"), wanted.data, None, Wanted(), wanted.out))


def test_a_full_disk_below_the_loader_is_said(tmp_path, model, monkeypatch):
    import errno

    from lm_eval.tasks import TaskManager

    def full(*_):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise ValueError("An error occurred while generating the dataset") from error

    monkeypatch.setattr(TaskManager, "load", full)
    with pytest.raises(PretraceError, match="the disk is full"):
        evaluated(model, lambada(tmp_path, 2))


def test_a_finished_task_is_shown_as_it_was_the_first_time(tmp_path, model):
    first, again = (evaluated(model, lambada(tmp_path, 2)).summary() for _ in range(2))
    assert json.dumps(first) == json.dumps(again)


@pytest.mark.parametrize("damage", ["cut rows", "no rows", "list", "text"])
def test_a_damaged_result_is_made_again_from_kept_answers(tmp_path, model, damage):
    wanted = lambada(tmp_path, 2)
    first = evaluated(model, wanted)
    rows, result = (
        tmp_path / "out" / first.folder / name for name in ("samples-lambada_openai.jsonl.zst", "lambada_openai.json")
    )
    if damage == "cut rows":
        rows.write_bytes(rows.read_bytes()[:100])
    elif damage == "no rows":
        rows.unlink()
    else:
        result.write_text({"list": json.dumps({**json.loads(result.read_text()), "samples": []}), "text": "{"}[damage])
    assert evaluated(model, wanted).summary() == first.summary()
    assert len(read_rows(rows).rows) == 2


def test_results_of_other_rows_are_set_aside_not_overwritten(tmp_path, model):
    first = evaluated(model, lambada(tmp_path, 2))
    second = evaluated(model, lambada(tmp_path, 3))
    assert first.folder == second.folder
    older = sorted(path.name.split("-", 1)[1] for path in (tmp_path / "out" / first.folder / "older").iterdir())
    assert older == ["lambada_openai.json", "samples-lambada_openai.jsonl.zst"]


@pytest.mark.parametrize("prefix", ["nonsense", "-1", "99999"])
def test_a_prefix_that_is_no_token_of_the_model_is_refused(tmp_path, model, prefix):
    with pytest.raises(PretraceError, match=r"prefix token is 99,999|has no token"):
        evaluated(model, asked(tmp_path, GOOD, prefix=prefix))


def test_a_place_that_cannot_be_written_is_said_before_anything_is_computed(tmp_path, model, monkeypatch):
    monkeypatch.setattr(network, "score", lambda *_: pytest.fail("something was computed"))
    (tmp_path / "out").write_text("a file")
    with pytest.raises(PretraceError):
        evaluated(model, asked(tmp_path, GOOD))


def test_results_hold_every_task_that_was_finished_in_the_folder(tmp_path, model):
    first = asked(tmp_path, GOOD)
    one = evaluated(model, first)
    folder = Path(one.folder)
    kept = folder / f"{first.tasks[0]}.json"
    # as a second task of another call would find it: finished, and not asked for now
    other = replace(one.tasks[0], name="earlier", results={"earlier": {"acc": 1.0}}, samples={}, sums={})
    write_json(folder / "earlier.json", asdict(other))
    (folder / "damaged.json").write_text("{")
    assert set(combined(one)["results"]) == {*one.summary()["results"], "earlier"}
    assert kept.is_file()


def test_a_failure_leaves_no_empty_folder_that_would_pass_for_one_with_rows(tmp_path, model):
    with pytest.raises(PretraceError, match="the task toy cannot be used"):
        evaluated(model, asked(tmp_path, [{"another": "key"}]))
    assert not list((tmp_path / "out").glob("model*"))
