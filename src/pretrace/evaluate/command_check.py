"""What is malformed or ignored in a published lm_eval command line, argument by argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches

from pretrace.evaluate.command import DASHES, Command, parse_command
from pretrace.evaluate.command_keys import fault, key_faults, value_faults
from pretrace.evaluate.command_tables import (
    BACKENDS,
    FLAGS,
    GONE,
    MEANT,
    OLD_MODELS,
    OTHER_MODELS,
    ROLLING_TASKS,
    VERSION,
)
from pretrace.evaluate.command_values import flag_faults, positive, task_faults
from pretrace.findings import Finding, Severity


def check_command(given: str | Sequence[str]) -> tuple[Finding, ...]:
    """Every fault of a command line, errors first. An empty tuple: nothing to point out.

    Raises
    ------
    PretraceError
        If it is no lm_eval command.

    >>> check_command("lm_eval --model hf --model_args pretrained=gpt2,--max_length=512 --tasks wikitext")[0].code
    'dash-in-key'
    """
    command = parse_command(given)
    found = [finding for check in _CHECKS for finding in check(command)]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _unknown_words(command: Command) -> Iterator[Finding]:
    for word in command.unknown:
        if any(letter in DASHES for letter in word[:2]):
            yield fault(
                "typographic-dash", "error", f"{word!r} begins with a dash that is no hyphen: it is read as a plain word",
                word, f"write --{word.strip('-' + DASHES)}",
            )  # fmt: skip
        elif word.startswith("-"):
            near = get_close_matches(word.lstrip("-").partition("=")[0], [*FLAGS, *GONE], 1)
            key = word.lstrip("-").partition("=")[0]
            inside = key in MEANT or any(key in backend.keys for backend in BACKENDS.values())
            mend = (
                f"write it inside --model_args: {key}=..." if inside else f"did you mean --{near[0]}?" if near else ""
            )
            yield fault("unknown-flag", "error", f"lm_eval has no flag {word}", word, mend or "take it out")
        else:
            yield fault(
                "stray-word", "error", f"{word!r} belongs to no flag", word,
                "quote the value before it, or take the blank out",
            )  # fmt: skip


def _gone(command: Command) -> Iterator[Finding]:
    for name in command.gone:
        yield fault(
            "old-flag",
            "error",
            f"--{name} is of a harness before {VERSION}",
            f"--{name}",
            GONE[name][1] + "; its figures are of that version's prompts too",
        )


def _twice(command: Command) -> Iterator[Finding]:
    for name, given in command.flags.items():
        if len(given) > 1 and FLAGS.get(name) == "one":
            yield fault(
                "given-twice",
                "warning",
                f"--{name} is given {len(given)} times: only the last counts",
                f"--{name}",
                "keep one",
            )
    keys = [pair.key.strip() for pair in command.model_args]
    for key in dict.fromkeys(k for k in keys if keys.count(k) > 1):
        yield fault(
            "given-twice",
            "warning",
            f"{key} stands {keys.count(key)} times in --model_args: only the last counts",
            key,
            "keep one",
        )


def _missing_values(command: Command) -> Iterator[Finding]:
    for name, given in command.flags.items():
        if FLAGS.get(name) in ("one", "many") and any(not values for values in given):
            yield fault(
                "no-value", "error", f"--{name} has no value", f"--{name}", "write its value, or take the flag out"
            )


def _model(command: Command) -> Iterator[Finding]:
    model = command.one("model")
    if model is None:
        yield fault("no-model", "info", "no --model: hf is taken", "--model", "write --model hf")
        return
    if model in OLD_MODELS:
        yield fault(
            "old-model", "error", f"--model {model} is of a harness before 0.4", f"--model {model}",
            "write --model hf; prompts and tasks have changed since, so the figures are not the same task's",
        )  # fmt: skip
    elif model not in BACKENDS and model not in OTHER_MODELS:
        near = get_close_matches(model, [*BACKENDS, *OTHER_MODELS], 1)
        mend = f"did you mean {near[0]}?" if near else "write --model hf"
        yield fault("unknown-model", "error", f"lm_eval has no backend {model!r}", f"--model {model}", mend)
    backend = BACKENDS.get(model)
    keys = {pair.key.strip() for pair in command.model_args}
    if backend is not None and backend.must not in keys and not (backend.must == "model" and "pretrained" in keys):
        yield fault(
            "no-checkpoint", "error", f"--model_args does not say {backend.must}=...", "--model_args",
            f"write {backend.must}=NAME",
        )  # fmt: skip


def _ignored(command: Command) -> Iterator[Finding]:
    tasks = [name for words in command.flags.get("tasks", []) for word in words for name in word.split(",") if name]
    shots = command.one("num_fewshot")
    rolling = [name for name in tasks if name.startswith(ROLLING_TASKS)]
    if shots not in (None, "0") and rolling:
        yield fault(
            "few-shot-ignored", "warning", f"--num_fewshot {shots} changes nothing in {', '.join(rolling)}: a whole text is "
            "scored without a prompt", f"--num_fewshot {shots}", "take it out for these tasks",
        )  # fmt: skip
    if command.one("max_batch_size") is not None and not (command.one("batch_size") or "").startswith("auto"):
        yield fault(
            "max-batch-ignored", "warning", "--max_batch_size counts only with --batch_size auto", "--max_batch_size",
            "take it out, or write --batch_size auto",
        )  # fmt: skip
    if "gen_kwargs" in command.flags and tasks and all(name in _LIKELIHOOD for name in tasks):
        yield fault(
            "gen-ignored",
            "warning",
            "--gen_kwargs changes nothing: no task here generates",
            "--gen_kwargs",
            "take it out",
        )
    if "samples" in command.flags and "limit" in command.flags:
        yield fault("limit-and-samples", "error", "--samples and --limit exclude each other", "--samples", "keep one")
    if (command.value("parallelize") or "").lower() == "true" and command.one("device") not in (None, "cuda"):
        yield fault(
            "device-ignored", "warning", "--device is overridden where parallelize=True places the model",
            f"--device {command.one('device')}", "take one out",
        )  # fmt: skip


_LIKELIHOOD = frozenset({
    "hellaswag", "lambada_openai", "lambada_standard", "wikitext", "piqa", "winogrande", "arc_easy", "arc_challenge",
    "sciq", "logiqa", "openbookqa", "boolq", "wsc", "copa", "mmlu",
})  # fmt: skip


def _left_in(command: Command) -> Iterator[Finding]:
    limit = command.one("limit")
    if limit is not None and positive(limit):
        yield fault(
            "limit-left-in", "warning", f"--limit {limit}: only the first rows are scored; on 100 rows of HellaSwag the standard "
            "error is 4.6 points", f"--limit {limit}", "take it out before a figure is published",
        )  # fmt: skip
    if command.one("use_cache") is not None:
        yield fault(
            "cache", "info", "--use_cache answers from what was scored before, also by other weights of the same name",
            "--use_cache", "name a new cache for new weights",
        )  # fmt: skip


def _moves_numbers(command: Command) -> Iterator[Finding]:
    model = command.one("model") or "hf"
    backend = BACKENDS.get(model)
    if (
        backend is not None
        and backend.keys
        and not any(p.key.strip() in ("max_length", backend.length) for p in command.model_args)
    ):
        tasks = [name for words in command.flags.get("tasks", []) for word in words for name in word.split(",")]
        if any(name.startswith(ROLLING_TASKS) for name in tasks):
            yield fault(
                "length-not-said", "info", "no context length is said: perplexities are of the model's own limit, or 2,048",
                "--model_args", f"write {backend.length}=N, so that the figure says its windows",
            )  # fmt: skip
    if command.one("batch_size") in ("auto", None) or (command.one("batch_size") or "").startswith("auto:"):
        return
    if command.value("dtype") in ("float16", "bfloat16") and command.one("device") == "cpu":
        yield fault(
            "half-on-cpu", "info", f"dtype={command.value('dtype')} on a CPU: figures differ from float32's in the third digit",
            "dtype", "say dtype=float32 to compare",
        )  # fmt: skip


_CHECKS: tuple[Callable[[Command], Iterator[Finding]], ...] = (
    _unknown_words, _gone, _twice, _missing_values, key_faults, value_faults, _model, task_faults, _ignored, flag_faults,
    _left_in, _moves_numbers,
)  # fmt: skip
