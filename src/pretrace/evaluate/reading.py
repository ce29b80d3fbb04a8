"""Rows from wherever they lie: a folder or file of ours, or of lm-evaluation-harness with `--log_samples`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretrace.errors import PretraceError, naming
from pretrace.evaluate.data_files import PUBLISHED_ROWS
from pretrace.evaluate.documents import TaskDocuments
from pretrace.evaluate.grouping import averaged, documents_of
from pretrace.evaluate.harness_results import step_of, task_name
from pretrace.evaluate.harness_samples import is_harness_samples, read_samples, task_of
from pretrace.evaluate.rows import Samples, read_rows
from pretrace.files import read_json

OURS = ".jsonl.zst"


def read_documents(paths: Iterable[str | Path]) -> tuple[TaskDocuments, ...]:
    """The documents of every file of rows in `paths` (files, or folders that are searched), in order of their names.

    Raises
    ------
    PretraceError
        If there is none, or one cannot be read.
    """
    found = [path for given in paths for path in _files(Path(given))]
    if not found:
        places = ", ".join(map(str, paths))
        raise PretraceError(
            "no rows were found",
            places,
            "add --tasks to evaluate a checkpoint, or run lm-evaluation-harness with --log_samples",
        )
    tasks = [task for path in found if (task := read_one(path)).documents]
    if not tasks:
        places = ", ".join(map(str, found))
        raise PretraceError(
            "the rows hold no document",
            places,
            "evaluate again, or name others",
        )
    return tuple(tasks)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("samples[-_]*") if _is_rows(p))
    if not path.exists():
        with naming(path, "reading"):
            path.stat()
    return [path]


def _is_rows(path: Path) -> bool:
    return path.is_file() and (is_harness_samples(path) or path.name.endswith(OURS))


def read_one(path: str | Path) -> TaskDocuments:
    """The documents of one file; how many rows the task has in all, and the length, from the results beside it.

    A local file may hold only some rows of a published set: then the set's number counts, as in "100 of 10,042 rows".
    """
    path = Path(path)
    task = documents_of(read_rows(path), str(path)) if path.name.endswith(OURS) else _of_harness(path)
    published = PUBLISHED_ROWS.get(task_name(task.task), (0, ""))[0]
    return replace(task, n_total=published) if published > (task.n_total or 0) else task


def _of_harness(path: Path) -> TaskDocuments:
    beside = _results_beside(path)
    length = beside.get("max_length")
    samples = read_samples(path, max_length=length if isinstance(length, int) else None)
    task = documents_of(replace(samples, about={**samples.about, **_how(beside, task_of(path), samples)}), str(path))
    counts = beside.get("n-samples")
    of_task = counts.get(task_of(path)) if isinstance(counts, Mapping) else None
    total = of_task.get("original") if isinstance(of_task, Mapping) else None
    model = str(beside.get("model_name") or "")
    return replace(task, n_total=total if isinstance(total, int) else None, checkpoint=model, step=step_of(model))


def _how(beside: Mapping[str, Any], name: str, samples: Samples) -> dict[str, Any]:
    """What the results say of how choices are joined and which metrics are means."""
    configs, results = beside.get("configs"), beside.get("results")
    config = configs.get(name) if isinstance(configs, Mapping) else None
    found: dict[str, Any] = {}
    if isinstance(config, Mapping) and isinstance(config.get("target_delimiter"), str):
        found["delimiter"] = config["target_delimiter"]
    if isinstance(results, Mapping) and isinstance(results.get(name), Mapping):
        plain = {key.removesuffix(",none"): value for key, value in results[name].items()}
        found["means"] = averaged(samples.rows, plain)
    return found


def _results_beside(path: Path) -> Mapping[str, Any]:
    """The harness writes results_TIME.json beside samples_TASK_TIME.jsonl; {} where there is none."""
    time = path.stem.removeprefix(f"samples_{task_of(path)}_")
    beside = path.with_name(f"results_{time}.json")
    data = read_json(beside) if beside.is_file() else {}
    return data if isinstance(data, Mapping) else {}
