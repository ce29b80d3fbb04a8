"""The block of a model card: `model-index` as the Hugging Face hub reads it, and a table that says how sure each figure is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pretrace.evaluate.harness_results import task_name
from pretrace.evaluate.numbers import Number
from pretrace.evaluate.overview import ScoredRun
from pretrace.evaluate.rederive_words import figure, rows

# Data set and split that a task's rows come from, as the hub names them.
DATASETS = {
    "hellaswag": ("Rowan/hellaswag", "HellaSwag", "validation"),
    "lambada_openai": ("EleutherAI/lambada_openai", "LAMBADA (OpenAI)", "test"),
    "wikitext": ("EleutherAI/wikitext_document_level", "WikiText-2 (documents)", "test"),
    "piqa": ("baber/piqa", "PIQA", "validation"),
}
PUBLISHED = ("acc", "acc_norm", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")


def model_index(run: ScoredRun, model: str, numbers: Sequence[Number] | None = None) -> list[dict[str, Any]]:
    """`model-index` of a card: one entry a task, its metrics inside; shares of 1 as the harness prints them."""
    chosen = _chosen(run) if numbers is None else list(numbers)
    results = []
    for task in dict.fromkeys(n.task for n in chosen):
        kind, name, split = DATASETS.get(task_name(task), (task, task, ""))
        dataset = {"name": name, "type": kind, **({"split": split} if split else {})}
        metrics = [_metric(run, n) for n in chosen if n.task == task]
        results.append({"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics})
    return [{"name": model, "results": results}]


def _chosen(run: ScoredRun) -> list[Number]:
    return [n for n in run.own if n.metric in PUBLISHED or n.judged]


def _metric(run: ScoredRun, number: Number) -> dict[str, Any]:
    task = run.task_of(number)
    args: dict[str, Any] = {"rows": number.interval.n}
    if task.n_total is not None:
        args["rows_in_all"] = task.n_total
    if task.max_length is not None:
        args["max_length"] = task.max_length
    if not math.isnan(number.interval.stderr):
        args["stderr"] = number.interval.stderr
    return {"type": number.metric, "value": number.value, "name": number.metric, "args": args}


def card(run: ScoredRun, model: str) -> str:
    """The front matter and the section of a card, in Markdown."""
    import yaml

    front = yaml.safe_dump({"model-index": model_index(run, model)}, sort_keys=False, allow_unicode=True)
    lines = [
        "| task | metric | value | standard error | 95% interval | rows | window |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_line(run, number) for number in _chosen(run)]
    faulty = sum(len(task.faulty) for task in run.tasks)
    note = f"\n{faulty:,} rows could not be scored and are in no figure.\n" if faulty else ""
    return f"---\n{front}---\n\n## Evaluation\n\n" + "\n".join(lines) + f"\n{note}"


def _line(run: ScoredRun, number: Number) -> str:
    i, task = number.interval, run.task_of(number)
    low, high = figure(i.low, number.family), figure(i.high, number.family)
    stderr = f"{100 * i.stderr:.2f} points" if number.family == "accuracy" else f"{i.stderr:.3g}"
    cells = (
        number.task, number.metric, figure(i.value, number.family), stderr, f"{low} to {high}", rows(i.n, task.n_total),
        f"{task.max_length:,}" if task.max_length else "not said",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"
