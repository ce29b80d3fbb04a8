"""One task on one model: the harness builds requests and metrics, the rows say what was scored.

Documents with a row that cannot be scored get no metric: the harness is run again on the others, from answers that are kept.
It would else take a log-likelihood that is not a number for the best of a choice.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretrace.evaluate.harness import Answered
from pretrace.evaluate.rows import Fault, Kind, Row
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.tasks import Loaded, unusable

FEWSHOT_SEED = 1234  # lm-evaluation-harness's default
_KINDS: dict[str, Kind] = {"multiple_choice": "choice", "loglikelihood": "loglikelihood", "loglikelihood_rolling": "rolling",
                           "generate_until": "generate"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """What the harness made of a name that was asked for: metrics by task or group, and the rows of each task."""

    results: dict[str, dict[str, Any]]
    versions: dict[str, Any]
    rows: dict[str, tuple[Row, ...]]
    n_documents: dict[str, int]  # in the data of each task, limit or not
    delimiters: dict[str, str]  # what each task puts between a question and an option

    def left_out(self, task: str) -> list[int]:
        """Documents without metrics."""
        return sorted({row.doc_id for row in self.rows[task] if not row.scored})


def prepare(loaded: Loaded, settings: Settings) -> None:
    """What `lm_eval.simple_evaluate` does before it evaluates: seeds, and the number of examples before a row."""
    random.seed(0)
    np.random.seed(FEWSHOT_SEED)
    for task in loaded.tasks.values():
        own = task.get_config("num_fewshot")
        if own is None or (settings.fewshot is not None and own != 0):
            task.set_config(key="num_fewshot", value=settings.fewshot or 0)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)


def run(loaded: Loaded, model: Any, settings: Settings) -> Ran:
    """Runs a task or a group of them.

    Raises
    ------
    PretraceError
        If the model cannot answer.
    """
    prepare(loaded, settings)
    out = _evaluate(model, loaded, settings, None)
    rows = {name: _rows(name, task, model.answered, out["samples"][name]) for name, task in loaded.tasks.items()}
    counts = {name: len(task.eval_docs) for name, task in loaded.tasks.items()}
    model.answered.clear()
    delimiters = {name: str(task.get_config("target_delimiter") or "") for name, task in loaded.tasks.items()}
    ran = Ran(_metrics(out), dict(out["versions"]), rows, counts, delimiters)
    kept = {name: sorted({row.doc_id for row in rows[name]} - set(ran.left_out(name))) for name in rows}
    if not any(ran.left_out(name) for name in rows):
        return ran
    if not all(kept.values()):  # a task without a document has no metric, and a group of it none either
        return replace(ran, results={})
    again = _evaluate(model, loaded, settings, kept)
    model.answered.clear()
    judged = {name: _with_metrics(rows[name], again["samples"][name]) for name in rows}
    return replace(ran, results=_metrics(again), rows=judged)


def _evaluate(model: Any, loaded: Loaded, settings: Settings, samples: dict[str, list[int]] | None) -> dict[str, Any]:
    from lm_eval.evaluator import evaluate

    # Without bootstrap: intervals are made from the rows (`pretrace.evaluate.numbers`), in seconds and with a seed.
    try:
        with np.errstate(invalid="ignore"):
            out = evaluate(model, loaded.bundle, limit=None if samples else settings.limit, samples=samples,
                           bootstrap_iters=0, log_samples=True)  # fmt: skip
    except Exception as error:  # templates and functions of tasks raise what they like
        if not _of_the_task(error):
            raise
        raise unusable(loaded.name, _which(loaded, settings, error), loaded.data) from error
    assert out is not None  # only other ranks get nothing
    return dict(out)


def _of_the_task(error: Exception) -> bool:
    """Whether it was raised below the harness, and not in what we answer to it."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not any(name.startswith("pretrace.") for name in frames[1:])


def _which(loaded: Loaded, settings: Settings, error: Exception) -> str:
    """The documents that a task cannot make a request of, and why."""
    faulty: list[str] = []
    for task in loaded.tasks.values():
        for doc_id, doc in task.doc_iterator(limit=settings.limit):
            try:
                task.doc_to_text(doc)
                task.doc_to_target(doc)
                if task.OUTPUT_TYPE == "multiple_choice":
                    assert list(task.doc_to_choice(doc)), "no option"
            except Exception:
                faulty.append(str(doc_id))
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    shown = ", ".join(faulty[:10]) + (" ..." if len(faulty) > 10 else "")
    return f"documents {shown}: {said}" if faulty else said


def _metrics(out: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`acc,none` is called `acc`; another filter's name stays behind its metric."""
    found: dict[str, dict[str, Any]] = {}
    for task, values in out["results"].items():
        named = {key: value for key, value in values.items() if "," in key and "_stderr," not in key}
        found[task] = {key.removesuffix(",none"): _plain(named[key]) for key in sorted(named)}
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _rows(
    name: str, task: Any, answered: Mapping[int, Answered], samples: Sequence[Mapping[str, Any]]
) -> tuple[Row, ...]:
    first: dict[int, Mapping[str, Any]] = {}
    for sample in samples:  # one for each filter
        first.setdefault(sample["doc_id"], sample)
    judged = _judged(samples)
    kind = _KINDS[task.OUTPUT_TYPE]
    seen: set[int] = set()
    rows: list[Row] = []
    golds = {n: _gold(task, kind, sample) for n, sample in first.items()}
    options = Counter(instance.doc_id for instance in task.instances)
    astray = {n for n, gold in golds.items() if kind == "choice" and not _among(gold, options[n])}
    for instance in sorted(task.instances, key=lambda one: (one.doc_id, one.idx)):
        sample = first[instance.doc_id]
        row = _row(name, kind, instance, answered[id(instance)], golds[instance.doc_id])
        if instance.doc_id in astray:
            row = replace(row, faults=(*row.faults, Fault("gold-not-there", f"it is {golds[instance.doc_id]!r}")))
        if instance.doc_id not in seen:
            row = replace(row, document=sample["doc"], metrics=judged[instance.doc_id])
            seen.add(instance.doc_id)
        rows.append(row)
    return tuple(_with_options(rows)) if kind == "choice" else tuple(rows)


def _with_options(rows: list[Row]) -> list[Row]:
    """Notes documents that have another number of options than 19 of 20 others."""
    counts = Counter(row.doc_id for row in rows)
    usual, share = Counter(counts.values()).most_common(1)[0]
    if share < 0.95 * len(counts):
        return rows
    odd = {n: Fault("options-differ", f"{count}, usually {usual}") for n, count in counts.items() if count != usual}
    return [replace(row, faults=(*row.faults, odd[row.doc_id])) if row.doc_id in odd else row for row in rows]


def _gold(task: Any, kind: Kind, sample: Mapping[str, Any]) -> Any:
    """The target of a document; of a choice the index of the right option, as the harness finds it (a list where several are)."""
    if kind != "choice":
        return None if kind == "rolling" else _plain(sample["target"])
    # Tasks whose options are contexts (winogrande) have the index where others have the text.
    gold = task.doc_to_text(sample["doc"]) if getattr(task, "multiple_input", 0) else sample["target"]
    options = list(task.doc_to_choice(sample["doc"])) if hasattr(task, "doc_to_choice") else []
    found = [options.index(g) if isinstance(g, str) and g in options else g for g in _listed(gold)]
    return found if isinstance(gold, (list, tuple)) else _plain(found[0])


def _among(gold: Any, n_options: int) -> bool:
    """Whether one of the right answers is the index of an option."""
    return any(isinstance(g, int) and 0 <= g < n_options for g in _listed(gold))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _row(name: str, kind: Kind, instance: Any, answered: Answered, gold: Any) -> Row:
    asked = answered.asked
    rolling = kind == "rolling"
    faults = list(asked.faults)
    if asked.parts and not all(scored.finite for scored in answered.scored):
        faults.append(Fault("not-finite"))
    scored = answered.scored
    return Row(
        name, instance.doc_id, instance.idx, kind, "" if rolling else instance.args[0],
        answered.written if kind == "generate" else instance.args[0 if rolling else 1], answered.total,
        answered.greedy if asked.parts else None, gold=gold,
        tokens=np.array(asked.tokens, np.int64),
        logprobs=np.concatenate([s.logprobs for s in scored]) if scored else np.empty(0, np.float32),
        starts=np.array(asked.starts, np.int64),
        seen=np.array([len(part.context) + i for part in asked.parts for i in range(len(part.continuation))], np.int64),
        faults=tuple(faults),
    )  # fmt: skip


def _judged(samples: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The metrics of each document under every filter, by the names of `_metrics`."""
    found: dict[int, dict[str, Any]] = {}
    for sample in samples:
        behind = "" if sample.get("filter", "none") == "none" else f",{sample['filter']}"
        of_one = {f"{metric}{behind}": _plain(sample[metric]) for metric in sample["metrics"]}
        found.setdefault(sample["doc_id"], {}).update(of_one)
    return found


def _with_metrics(rows: tuple[Row, ...], again: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The rows of all documents, with metrics for those that were evaluated again and for no others."""
    judged = _judged(again)
    return tuple(replace(row, metrics=judged.get(row.doc_id, {})) if row.document else row for row in rows)
