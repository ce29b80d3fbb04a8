import inspect
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.evaluate.command import parse_command
from pretrace.evaluate.command_check import check_command
from pretrace.evaluate.command_tables import BACKENDS, FLAGS, OTHER_MODELS, SHORT

GOOD = (
    "lm_eval --model hf --model_args pretrained=EleutherAI/pythia-160m,revision=step100000,dtype=float32,max_length=2048 "
    "--tasks lambada_openai,hellaswag --device cuda:0 --batch_size 8 --output_path out --log_samples"
)


def codes(command):
    return [finding.code for finding in check_command(command)]


def test_a_sound_command_has_nothing_to_point_out():
    assert codes(GOOD) == []
    assert codes(shlex.split(GOOD)) == []


def test_model_arguments_as_one_json_object_are_read_as_the_harness_reads_them():
    made = GOOD.replace("pretrained=EleutherAI/pythia-160m,revision=step100000,dtype=float32,max_length=2048", "{}")
    assert codes(made.replace("{}", """'{"pretrained": "m", "max_length": 2048}'""")) == []
    assert codes(made.replace("{}", """'{"pretrained": "m", "--max_length": 2048}'""")) == ["dash-in-key"]
    assert "no-equals" in codes(made.replace("{}", """'{"pretrained": "m"'"""))


def test_a_doubled_dash_inside_the_model_arguments_is_pointed_out():
    (found, *_) = check_command(GOOD.replace(",max_length=2048", ",--max_length=2048"))
    assert (found.code, found.severity) == ("dash-in-key", "error")
    assert "max_length is not set" in found.what
    assert found.mend == "write max_length=2048 after a comma, without dashes"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("max_length=2048", "max_len=2048"), "unread-key"),
        (("max_length=2048", "max_length:2048"), "no-equals"),
        (("max_length=2048", "max_length="), "empty-value"),
        (("max_length=2048", "max_length=long"), "no-number"),
        ((",max_length", ", max_length"), "blank-in-model-args"),
        (("dtype=float32", "dtype=fp32"), "no-such-dtype"),
        (("dtype=float32", "dtype=float32,dtype=float16"), "given-twice"),
        (("pretrained=EleutherAI/pythia-160m,", ""), "no-checkpoint"),
        (("dtype=float32", "batch_size=4"), "set-twice"),
        (("--model hf", "--model hf-causal"), "old-model"),
        (("--model hf", "--model hugging"), "unknown-model"),
        (("--tasks", "--task_list"), "unknown-flag"),
        (("--tasks", "\u2013\u2013tasks"), "typographic-dash"),
        (("--log_samples", "--no_cache"), "old-flag"),
        (("--log_samples", "--limit 100"), "limit-left-in"),
        (("--log_samples", "--max_length 512"), "unknown-flag"),
        (("--log_samples", "--max_batch_size 64"), "max-batch-ignored"),
        (("--log_samples", "--gen_kwargs temperature=0"), "gen-ignored"),
        (("--log_samples", "--device"), "no-value"),
        (("--log_samples", "--batch_size 4"), "given-twice"),
        (("--log_samples", "--seed 1,2"), "no-such-value"),
        (("--log_samples", "--seed one"), "no-such-value"),
        (("160m,revision", "160m;revision"), "joined-otherwise"),
        (("lambada_openai,hellaswag", "wikitext --num_fewshot 5"), "few-shot-ignored"),
        (("lambada_openai,hellaswag", "hendrycksTest-anatomy"), "old-task"),
        (("lambada_openai,hellaswag", "lambada_openai, hellaswag"), "blank-in-tasks"),
        (("--tasks lambada_openai,hellaswag", ""), "no-tasks"),
        (("--model hf", "--model gguf"), "unread-key"),
        (("lambada_openai,hellaswag", "wikitxt"), "unknown-task"),
        (("lambada_openai,hellaswag", "my_own_probe"), "task-not-checked"),
        (("max_length=2048", "max_length=0"), "no-number"),
        (("--log_samples", "--limit -1"), "no-such-value"),
        (("--log_samples", "--num_fewshot -3"), "no-such-value"),
        (("--batch_size 8", "--batch_size foo"), "no-such-value"),
        (("--device cuda:0", "--device cuda:77x"), "no-such-device"),
    ],
)
def test_each_fault_has_its_name(change, code):
    assert GOOD.replace(*change) != GOOD
    assert code in codes(GOOD.replace(*change))


def test_sound_values_of_every_kind_pass():
    for change in (
        ("--batch_size 8", "--batch_size auto:4"),
        ("cuda:0", "mps"),
        ("hellaswag", "mmlu_anatomy,bbh,mmlu"),
    ):
        assert codes(GOOD.replace(*change)) == []


def test_a_length_that_the_backend_does_not_read_is_an_error_with_the_key_it_reads():
    command = "lm_eval --model sglang --model_args pretrained=gpt2,max_length=512 --tasks hellaswag"
    found = next(f for f in check_command(command) if f.code == "unread-key")
    assert found.severity == "error"
    assert found.mend == "write context_length=..."


def test_an_interface_ignores_a_key_without_a_word():
    command = "lm_eval --model local-completions --model_args model=m,base_url=u,dtype=float32 --tasks hellaswag"
    found = next(f for f in check_command(command) if f.code == "unread-key")
    assert "ignored without a word" in found.what


def test_max_length_as_a_flag_is_sent_inside_the_model_arguments():
    found = next(f for f in check_command(GOOD + " --max_length 512") if f.code == "unknown-flag")
    assert "inside --model_args" in found.mend


def test_a_command_over_several_lines_is_read_as_one():
    command = (
        "python main.py \\\n  --model hf \\\n  --model_args pretrained=gpt2,dtype=float32 \\\n  --tasks hellaswag\n"
    )
    assert parse_command(command).value("pretrained") == "gpt2"
    assert codes(command) == []


def test_commas_inside_brackets_do_not_part_arguments():
    command = parse_command("lm_eval --model_args pretrained=m,chat_template_args=\"{'a': 1, 'b': 2}\" --tasks x")
    assert [pair.key for pair in command.model_args] == ["pretrained", "chat_template_args"]


@pytest.mark.parametrize("text", ["", "make me a sandwich", "lm_eval --model 'hf"])
def test_what_is_no_command_is_one_error(text):
    with pytest.raises(PretraceError):
        check_command(text)


@given(st.text(max_size=60))
def test_any_words_after_lm_eval_are_findings_or_one_error(text):
    try:
        found = check_command("lm_eval " + text)
    except PretraceError:
        return
    assert all(finding.code and finding.what for finding in found)


@pytest.mark.interop
def test_the_tables_are_those_of_the_installed_harness():
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval._cli.harness import HarnessCLI
    from lm_eval.models import MODEL_MAPPING
    from lm_eval.models.api_models import TemplateAPI
    from lm_eval.models.huggingface import HFLM

    assert lm_eval.__version__ == "0.4.13"
    run = HarnessCLI()._subparsers.choices["run"]._actions
    assert {a.dest for a in run} == set(FLAGS)
    assert {s[1:]: a.dest for a in run for s in a.option_strings if not s.startswith("--")} == SHORT
    assert set(BACKENDS) | OTHER_MODELS == set(MODEL_MAPPING)
    for name, kind in (("hf", HFLM), ("local-completions", TemplateAPI)):
        keys = set(inspect.signature(kind.__init__).parameters) - {"self", "kwargs"}
        assert keys == set(BACKENDS[name].keys), name
