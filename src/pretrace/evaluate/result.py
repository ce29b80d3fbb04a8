"""What an evaluation found, as plain values, and the folder that keeps it.

OUT/NAME-CHECKPOINT-SETTINGS/ holds `TASK.json` and `samples-TASK.jsonl.zst` of each task that is finished, and `results.json`
of all of them. A task's file carries its key: what would move its numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pretrace.digest import digest_of, short, xxh3_of_file
from pretrace.errors import PretraceError
from pretrace.evaluate.data_files import PUBLISHED_ROWS, DataFile
from pretrace.evaluate.grouping import documents_of
from pretrace.evaluate.numbers import numbers
from pretrace.evaluate.rows import Row, Samples
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.subject import Subject
from pretrace.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task (or group of tasks)."""

    key: str
    name: str
    results: dict[str, dict[str, Any]]  # task -> metric -> value
    denominators: dict[str, dict[str, Any]]  # task -> what was divided by
    versions: dict[str, Any]
    notes: dict[str, dict[str, int]]  # task -> fault code -> rows
    intervals: dict[str, dict[str, dict[str, Any]]]  # task -> metric -> stderr, low, high at 95%, over n documents
    samples: dict[str, str]  # task -> file of rows, relative to the folder
    sums: dict[str, str]  # task -> xxh3 of that file


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All tasks on one checkpoint."""

    checkpoint: str
    digest: str
    step: int | None
    harness: str
    settings: Settings
    said: dict[str, str]  # of each setting where it comes from
    tokenizer: str
    assumed: tuple[str, ...]  # values of the model that no file says
    folder: str
    tasks: tuple[TaskResult, ...] = field(default=())

    @property
    def left_out(self) -> int:
        """Documents that could not be scored."""
        return sum(len(d["left_out"]) for task in self.tasks for d in task.denominators.values())

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints and `results.json` holds."""
        return {
            "checkpoint": self.checkpoint, "digest": self.digest, "step": self.step,
            "results": {name: values for task in self.tasks for name, values in task.results.items()},
            "harness": self.harness, "max_length": self.settings.max_length,
            "denominators": {name: values for task in self.tasks for name, values in task.denominators.items()},
            "intervals": {name: values for task in self.tasks for name, values in task.intervals.items()},
            "versions": {name: value for task in self.tasks for name, value in task.versions.items()},
            "notes": {name: value for task in self.tasks for name, value in task.notes.items() if value},
            "settings": self.settings.model_dump(mode="json"), "settings_from": self.said, "tokenizer": self.tokenizer,
            "assumed": list(self.assumed),
            "samples": {name: f"{self.folder}/{file}" for task in self.tasks for name, file in task.samples.items()},
        }  # fmt: skip


def folder_of(out: Path, subject: Subject, settings: Settings) -> Path:
    """Where the results of a checkpoint under these settings are."""
    return out / f"{subject.name}-{subject.digest[:8]}-{short(settings.digest())}"


def task_key(
    name: str, subject: Subject, settings: Settings, coder_digest: str, harness: str, data: tuple[DataFile, ...]
) -> str:
    """What would move the numbers of a task. The task's version follows from the harness's."""
    files = [[file.split, file.digest] for file in data if file.task == name]
    return digest_of({"task": name, "checkpoint": subject.digest, "settings": settings.hashed(), "tokenizer": coder_digest,
                      "harness": harness, "data": files, "rows": 4})  # fmt: skip


def finished(folder: Path, name: str, key: str) -> TaskResult | None:
    """The result of a task, if it was finished under the same key and its rows are as they were written."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        result = TaskResult(**read_json(path))
        whole = all(xxh3_of_file(folder / file) == result.sums[task] for task, file in result.samples.items())
        alike = all(isinstance(values, dict) for values in (result.results, result.denominators, result.notes))
    except (PretraceError, TypeError, AttributeError, KeyError, OSError):
        return None  # an older form, or damaged: evaluated again from kept answers
    return result if result.key == key and whole and alike else None


def save(folder: Path, result: TaskResult) -> TaskResult:
    """Writes a finished task; returns what the next process will read."""
    path = folder / f"{result.name}.json"
    write_json(path, asdict(result))
    return TaskResult(**read_json(path))


def set_aside(folder: Path, name: str, key: str) -> None:
    """Moves a result of the same name that is of other rows or another tokenizer to `older/`: nothing is overwritten."""
    path = folder / f"{name}.json"
    try:
        before = TaskResult(**read_json(path))
        files = [path.name, *before.samples.values()]
    except (PretraceError, TypeError, AttributeError):
        return
    if before.key == key:
        return
    (folder / "older").mkdir(exist_ok=True)
    for file in files:
        if (folder / file).is_file():
            os.replace(folder / file, folder / "older" / f"{short(before.key)}-{file}")


def denominators(task: str, rows: tuple[Row, ...], n_documents: int, left_out: list[int]) -> dict[str, Any]:
    """What the numbers of a task are divided by, and how many rows the published set has."""
    scored = [row for row in rows if row.doc_id not in set(left_out)]
    found: dict[str, Any] = {
        "documents": len({row.doc_id for row in scored}), "of": n_documents, "left_out": left_out,
        "tokens": sum(len(row.tokens) for row in scored),
    }  # fmt: skip
    if task in PUBLISHED_ROWS:
        found["published"] = PUBLISHED_ROWS[task][0]
    for metric, unit in (("word_perplexity", "words"), ("byte_perplexity", "bytes")):
        pairs = [row.metrics[metric] for row in scored if isinstance(row.metrics.get(metric), (tuple, list))]
        if pairs:
            found[unit] = int(sum(pair[1] for pair in pairs))
    return found


def intervals(samples: Samples, results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """How sure each of the harness's metrics is, from the rows; metrics that only the harness can make have none."""
    own = [n for n in numbers(documents_of(samples), windows=False) if not n.departures and n.metric in results]
    found = {}
    for number in own:
        i = number.interval
        values = {"stderr": i.stderr, "low": i.low, "high": i.high}
        found[number.metric] = {k: v if math.isfinite(v) else None for k, v in values.items()} | {"n": i.n}
    return found


def notes(rows: tuple[Row, ...]) -> dict[str, int]:
    """How many rows have each fault."""
    counts: dict[str, int] = {}
    for row in rows:
        for fault in row.faults:
            counts[fault.code] = counts.get(fault.code, 0) + 1
    return dict(sorted(counts.items()))


def combined(evaluation: Evaluation) -> Mapping[str, Any]:
    """Writes `results.json` and returns its value: the tasks that were asked for, and those finished here before."""
    folder = Path(evaluation.folder)
    asked = {task.name for task in evaluation.tasks}
    earlier = [task for path in sorted(folder.glob("*.json")) if (task := _whole(path)) and task.name not in asked]
    value = replace(evaluation, tasks=(*earlier, *evaluation.tasks)).summary()
    write_json(folder / "results.json", value)
    return value


def _whole(path: Path) -> TaskResult | None:
    """The task that is finished in a file; None for other files, and where rows are damaged."""
    try:
        task = TaskResult(**read_json(path))
        return finished(path.parent, path.stem, task.key)
    except (PretraceError, TypeError):
        return None
