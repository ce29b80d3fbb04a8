"""The per-request file of lm-evaluation-harness (`--log_samples`) as rows of ours: sums a continuation, no single tokens.

Three spellings are read: 0.4.0 and 0.4.1 wrote one JSON array a task, 0.4.2 one sample a line with numbers and lists of
arguments, later ones strings and `gen_args_0`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pretrace.errors import PretraceError, naming
from pretrace.evaluate.data_files import PUBLISHED_ROWS
from pretrace.evaluate.rows import Fault, Kind, Row, Samples

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d.:-]+)\.jsonl$")


def is_harness_samples(path: str | Path) -> bool:
    """Whether the name is one that the harness gives."""
    return Path(path).name.startswith("samples_") and Path(path).suffix == ".jsonl"


def task_of(path: str | Path) -> str:
    """The task in a file's name.

    >>> task_of("out/samples_local_wikitext_2026-11-29T21-38-06.202143.jsonl")
    'local_wikitext'
    """
    found = _NAME.match(Path(path).name)
    stem = Path(path).stem.removeprefix("samples_")
    # 0.4.0 named its files MODEL_ARGS_TASK.jsonl
    known = next((task for task in PUBLISHED_ROWS if stem.endswith(f"_{task}")), stem)
    return found["task"] if found else known


def read_samples(path: str | Path, *, max_length: int | None = None) -> Samples:
    """The rows of a samples file; `max_length` as the results file beside it says, if it does.

    Raises
    ------
    PretraceError
        If the file cannot be read or a line is not a sample; names the line.
    """
    task, path = task_of(path), Path(path)
    rows: list[Row] = []
    kept_filter: object = None
    with naming(path, "reading"), open(path, encoding="utf-8") as lines:
        try:
            for number, data in enumerate(_samples(lines, path), 1):
                kept_filter = data.get("filter") if number == 1 else kept_filter
                if data.get("filter") == kept_filter:  # the same answers come once a filter
                    rows.extend(_rows(data, task, f"{path}: line {number}"))
        except UnicodeDecodeError as error:
            raise _bad(path, 0, f"not UTF-8: {error.reason}") from None
    if not rows:
        raise PretraceError("the file holds no sample", str(path), "run the harness again with --log_samples")
    return Samples({"task": task, "harness": "lm-evaluation-harness", "max_length": max_length}, tuple(rows))


def _bad(path: Path, number: int, why: str) -> PretraceError:
    return PretraceError(
        f"not a sample of lm-evaluation-harness: {why}", f"{path}: line {number}", "restore the file, or name another"
    )


def _samples(lines: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    first = lines.read(1)
    lines.seek(0)
    if first != "[":
        yield from (_sample(line, number, path) for number, line in enumerate(lines, 1))
        return
    found = _parsed(lines.read(), 1, path)
    yield from (_checked(data, number, path) for number, data in enumerate(found, 1))


def _parsed(text: str, number: int, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, number, str(error)) from None


def _sample(line: str, number: int, path: Path) -> dict[str, Any]:
    return _checked(_parsed(line, number, path), number, path)


def _checked(data: Any, number: int, path: Path) -> dict[str, Any]:
    if not isinstance(data, dict) or not isinstance(data.get("doc_id"), int) or "resps" not in data:
        raise _bad(path, number, "doc_id or resps is missing")
    return data


def _rows(data: Mapping[str, Any], task: str, where: str) -> Iterator[Row]:
    try:
        arguments = list(_arguments(data.get("arguments", [])))
        answers = [answer[0] for answer in data["resps"]]
        if len(arguments) != len(answers):
            raise ValueError(f"{len(arguments)} requests, {len(answers)} answers")
        kind = _kind(arguments, answers)
        document = data.get("doc") if isinstance(data.get("doc"), Mapping) else {}
        for idx, (request, answer) in enumerate(zip(arguments, answers, strict=True)):
            yield _row(task, data, idx, kind, request, answer, document or {})
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise PretraceError(
            f"not a sample of lm-evaluation-harness: {error}", where, "restore the file, or name another"
        ) from None


def _arguments(found: Any) -> Iterator[tuple[Any, ...]]:
    for one in found.values() if isinstance(found, Mapping) else found:
        yield tuple(one.values()) if isinstance(one, Mapping) else tuple(one) if isinstance(one, list) else (one,)


def _kind(arguments: list[tuple[Any, ...]], answers: list[Any]) -> Kind:
    if len(arguments[0]) > 1 and not isinstance(arguments[0][1], str):
        return "generate"  # the second argument is a dictionary of options
    if len(arguments[0]) == 1:
        return "rolling"
    return "choice" if len(arguments) > 1 else "loglikelihood"


def _row(
    task: str, data: Mapping[str, Any], idx: int, kind: Kind, request: tuple[Any, ...], answer: Any, doc: Any
) -> Row:
    first = idx == 0
    if kind == "generate":
        total, greedy, context, text = math.nan, None, str(request[0]), str(answer)
    else:
        pair = answer if isinstance(answer, list) else [answer, None]
        total = float(pair[0])
        greedy = None if len(pair) < 2 or pair[1] is None else str(pair[1]) == "True"
        context, text = ("", str(request[0])) if kind == "rolling" else (str(request[0]), str(request[1]))
    faults: tuple[Fault, ...] = ()
    if kind != "generate" and not math.isfinite(total):
        faults = (Fault("not-finite", str(total)),)
    if kind != "generate" and text == "":
        faults += (Fault("empty-continuation", "the text to score is empty"),)
    metrics = {name: data[name] for name in data.get("metrics", ()) if name in data} if first else {}
    gold = data.get("target", doc.get("gold"))
    return Row(
        task, data["doc_id"], idx, kind, context, text, total, greedy, gold,
        faults=faults, document=doc if first else {}, metrics=metrics,
    )  # fmt: skip
