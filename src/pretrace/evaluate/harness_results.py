"""Published results read into one list of figures, whichever program or year wrote them.

Read are: result files of lm-evaluation-harness 0.4 (`acc,none`, `alias`, `n-samples`) and before (`acc` beside
`acc_stderr`, no filters, `hendrycksTest-*`), our own results.json, and tables as the Pythia suite was published (CSV, also
.gz; the columns are model, num_fewshot, step, task, metric, value, stderr).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrace.errors import PretraceError, naming

Layout = Literal["lm-eval 0.4", "lm-eval before 0.4", "pretrace", "table"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number. `stderr`, `n` (documents) and `version` (of the task) are NaN, None and "" where not said."""

    model: str
    step: int | None
    task: str
    metric: str
    value: float
    stderr: float
    n: int | None = None
    num_fewshot: int | None = None
    version: str = ""
    low: float = math.nan  # ends of the 95% interval, where known
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of one file, and how they were made as far as it says (`settings`)."""

    layout: Layout
    source: str
    figures: tuple[Figure, ...]
    settings: Mapping[str, Any]

    def models(self) -> tuple[str, ...]:
        """The models of the figures, in the file's order."""
        return tuple(dict.fromkeys(figure.model for figure in self.figures))


# Names of one task or metric over the versions of the harness, old to new.
TASKS = {
    "lambada": "lambada_openai", "local_lambada_openai": "lambada_openai", "local_hellaswag": "hellaswag",
    "local_wikitext": "wikitext",
}  # fmt: skip
METRICS = {"ppl": "perplexity", "word_ppl": "word_perplexity", "byte_ppl": "byte_perplexity", "bpb": "bits_per_byte"}


def task_name(name: str) -> str:
    """The name of 0.4 for a task of any version.

    >>> task_name("hendrycksTest-abstract_algebra"), task_name("lambada")
    ('mmlu_abstract_algebra', 'lambada_openai')
    """
    return TASKS.get(name, re.sub(r"^hendrycksTest-", "mmlu_", name))


def metric_name(name: str) -> str:
    """The metric without its filter, by the name of 0.4.

    >>> metric_name("acc,none"), metric_name("ppl")
    ('acc', 'perplexity')
    """
    bare = name.partition(",")[0]
    return METRICS.get(bare, bare)


def read_results(path: str | Path) -> Results:
    """The figures of a file.

    Raises
    ------
    PretraceError
        If it cannot be read or is none of the known layouts.
    """
    text = _text(Path(path))
    if text.lstrip().startswith("{"):
        return _json(text, str(path))
    return _table(text, str(path))


def _text(path: Path) -> str:
    with naming(path, "reading"):
        data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PretraceError(f"{path.name} cannot be read: {error}", str(path), "restore the file") from None


def _unknown(where: str, why: str) -> PretraceError:
    return PretraceError(
        f"not a file of results: {why}", where,
        "name a results JSON of lm-evaluation-harness, or a CSV with the columns model, step, task, metric, value",
    )  # fmt: skip


def _json(text: str, where: str) -> Results:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unknown(where, str(error)) from None
    results = data.get("results")
    if not isinstance(results, Mapping) or not all(isinstance(v, Mapping) for v in results.values()):
        raise _unknown(where, "no results by task")
    config = data.get("config")
    config = config if isinstance(config, Mapping) else {}
    settings = {**config, **{k: data[k] for k in ("max_length", "lm_eval_version", "date", "git_hash") if k in data}}
    filtered = any("," in str(key) for metrics in results.values() for key in metrics)
    layout: Layout = "lm-eval 0.4" if filtered else "pretrace" if "harness" in data else "lm-eval before 0.4"
    model, step = _model(data, config)
    figures = tuple(
        figure for task, metrics in results.items() for figure in _figures(data, str(task), metrics, model, step)
    )
    return Results(layout, where, figures, settings)


def _model(data: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, int | None]:
    args = config.get("model_args", "")
    said = dict(args) if isinstance(args, Mapping) else _pairs(str(args or ""))
    name = str(data.get("model_name") or said.get("pretrained") or data.get("checkpoint") or config.get("model") or "")
    if isinstance(data.get("step"), int):
        return name, data["step"]
    return name, step_of(str(said.get("revision", ""))) or step_of(name)


def _pairs(text: str) -> dict[str, str]:
    return {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in text.split(","))}


def step_of(text: str) -> int | None:
    """The step in a revision or a folder's name.

    >>> step_of("step143000"), step_of("checkpoints/step-00000128"), step_of("main")
    (143000, 128, None)
    """
    found = re.search(r"step[-_]?(\d+)", text)
    return int(found[1]) if found else None


def _figures(
    data: Mapping[str, Any], task: str, metrics: Mapping[str, Any], model: str, step: int | None
) -> Iterator[Figure]:
    version = str(_of_task(data, "versions", task, ""))
    shots = _of_task(data, "n-shot", task, None)
    config = data.get("config")
    if shots is None and isinstance(config, Mapping):
        shots = config.get("num_fewshot")
    n = _of_task(data, "n-samples", task, None)
    n = n.get("effective") if isinstance(n, Mapping) else metrics.get("sample_len", n)
    ours = _of_task(data, "denominators", task, None)
    n = ours.get("documents") if isinstance(ours, Mapping) else n
    for key, value in metrics.items():
        name, _, kept = str(key).partition(",")
        if name.endswith("_stderr") or isinstance(value, (str, bool)) or name in ("alias", "name", "sample_len"):
            continue
        if math.isnan(_float(value)):
            continue
        stderr = _float(metrics.get(f"{name}_stderr" + (f",{kept}" if kept else "")))
        metric = name if kept in ("", "none") else f"{name},{kept}"
        sure = _of_task(data, "intervals", task, None)
        found = sure.get(name) if isinstance(sure, Mapping) else None
        found = found if isinstance(found, Mapping) else {}
        stderr = _float(found["stderr"]) if "stderr" in found else stderr
        yield Figure(
            model, step, task, metric, _float(value), stderr, n if isinstance(n, int) else None,
            shots if isinstance(shots, int) else None, version, _float(found.get("low")), _float(found.get("high")),
        )  # fmt: skip


def _of_task(data: Mapping[str, Any], key: str, task: str, otherwise: Any) -> Any:
    found = data.get(key)
    return found.get(task, otherwise) if isinstance(found, Mapping) else otherwise


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _table(text: str, where: str) -> Results:
    rows = csv.DictReader(io.StringIO(text))
    names = set(rows.fieldnames or ())
    if missing := {"task", "metric", "value"} - names:
        raise _unknown(where, f"no column {', '.join(sorted(missing))}")
    try:
        figures = tuple(_of_row(row, where, number) for number, row in enumerate(rows, 2))
    except csv.Error as error:
        raise _unknown(where, str(error)) from None
    return Results("table", where, figures, {})


def _of_row(row: Mapping[str, str | None], where: str, number: int) -> Figure:
    value = row.get("value") or ""
    try:
        figure = float(value)
    except ValueError:
        raise _unknown(f"{where}: line {number}", f"{value!r} is not a number") from None
    return Figure(
        row.get("model") or "", _int(row.get("step")), row.get("task") or "", row.get("metric") or "", figure,
        _float(row.get("stderr")), _int(row.get("n")), _int(row.get("num_fewshot")),
    )  # fmt: skip


def _int(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
