"""An evaluation in lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pretrace.evaluate.result import Evaluation
from pretrace.evaluate.rows import FATAL, NOTES


def settings_lines(evaluation: Evaluation) -> dict[str, str]:
    """Each setting with its value and where it comes from."""
    values = evaluation.settings.model_dump(mode="json")
    said = evaluation.said
    lines = {name: _setting(name, values[name], said.get(name, "")) for name in values}
    lines |= {f"assumed {n}": f"assumed      {words}" for n, words in enumerate(evaluation.assumed)}
    lines["tokenizer"] = f"tokenizer    {evaluation.tokenizer}" + (
        f" ({said['tokenizer']})" if "tokenizer" in said else ""
    )
    lines["harness"] = f"harness      {evaluation.harness}"
    return lines


def _setting(name: str, value: Any, source: str) -> str:
    shown = "-" if value is None else f"{value:,}" if isinstance(value, int) and name != "prefix" else str(value)
    return f"{name:<12} {shown}" + (f" ({source})" if source and source != "given" else "")


def result_lines(evaluation: Evaluation) -> list[str]:
    """Metrics of every task with what they were divided by, then what was said of rows."""
    lines: list[str] = []
    for task in evaluation.tasks:
        for name, metrics in task.results.items():
            version = task.versions.get(name)
            lines.append(f"{name}  (version {version})" if version is not None else name)
            sure = task.intervals.get(name, {})
            said = {
                metric: _sure(sure.get(metric)) if name in task.denominators else "   of its tasks"
                for metric in metrics
            }
            lines += [f"  {metric:<18} {_number(value)}{said[metric]}" for metric, value in metrics.items()]
            lines += _rest(name, task.denominators.get(name, {}), task.notes.get(name, {}))
        if not task.results:
            lines.append(f"{task.name}  no number: no document could be scored")
            for name in task.denominators:
                lines += _rest(name, task.denominators[name], task.notes.get(name, {}))
    return [*lines, "", f"rows: {evaluation.folder}"]


def _sure(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return "   no interval: made of all documents together"
    if interval["low"] is None:
        return "   one document cannot say how sure it is" if interval["n"] == 1 else ""
    return f"   95% interval {_number(interval['low'])} to {_number(interval['high'])} ({interval['n']:,} documents)"


def _rest(name: str, counts: dict[str, Any], notes: dict[str, int]) -> list[str]:
    if not counts:
        return []
    parts = [f"{counts['documents']:,} of {counts['of']:,} documents"]
    parts += [f"{counts[unit]:,} {unit}" for unit in ("words", "bytes", "tokens") if unit in counts]
    lines = [f"  over               {', '.join(parts)}"]
    if counts.get("published", counts["of"]) != counts["of"]:
        lines.append(
            f"  note               published figures of {name} are over {counts['published']:,} rows, not these"
        )
    for code, count in notes.items():
        rows = "1 row" if count == 1 else f"{count:,} rows"
        lines.append(f"  {'left out' if code in FATAL else 'note':<18} {rows}: {(FATAL | NOTES)[code]}")
    if counts["left_out"]:
        shown = ", ".join(map(str, counts["left_out"][:10])) + (" ..." if len(counts["left_out"]) > 10 else "")
        lines.append(f"  left out           {'document' if len(counts['left_out']) == 1 else 'documents'} {shown}")
    return lines


def series_lines(evaluations: list[Evaluation]) -> list[str]:
    """One line a checkpoint, one column a metric."""
    columns = list(dict.fromkeys((name, metric) for one in evaluations for task in one.tasks
                                 for name, values in task.results.items() for metric in values))  # fmt: skip
    heads = [f"{name}.{metric}" for name, metric in columns]
    width = max([len(_label(one)) for one in evaluations])
    lines = ["  ".join([" " * width, *heads])]
    for one in evaluations:
        values = one.summary()["results"]
        cells = [_number(values.get(name, {}).get(metric, float("nan"))) for name, metric in columns]
        lines.append(
            "  ".join([_label(one).ljust(width), *(c.rjust(len(h)) for c, h in zip(cells, heads, strict=True))])
        )
    left = [f"{_label(one)}: {one.left_out} documents left out" for one in evaluations if one.left_out]
    for task in evaluations[0].tasks:
        for name, counts in task.denominators.items():
            lines += [f"  {name}", *(f"  {line}" for line in _rest(name, counts, {}))]
    return [*lines, *left, "", *(f"rows: {one.folder}" for one in evaluations)]


def _label(one: Evaluation) -> str:
    return f"step {one.step:,}" if one.step is not None else one.checkpoint


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    size = abs(value)
    return f"{value:.4f}" if size < 100 else f"{value:,.1f}" if size < 1e5 else f"{value:.3e}"
