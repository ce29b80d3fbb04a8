"""A series of steps: is every step its own, in its place, and on the curve of its neighbours.

Files first: what has equal digests is not read. Then one pass over each remaining step makes its fingerprint; from
those come norms and the distances between all pairs, without holding two checkpoints at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pretrace.audit.curve as curve
from pretrace.audit.copies import same_files, same_tensors
from pretrace.audit.steps import Step, dtype_changes, labels, look, missing, name_changes
from pretrace.checkpoint.detect import survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.compare.fingerprint import Fingerprint, fingerprint
from pretrace.errors import PretraceError
from pretrace.executor import map_tasks
from pretrace.findings import CheckNotRun, Finding, Outcome, outcome_of

Advance = Callable[[str], None]  # called with the step that is done


@dataclass(frozen=True)
class SeriesAudit:
    """What the audit of a series says."""

    path: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    checks_not_run: tuple[CheckNotRun, ...]
    steps: tuple[Step, ...]
    curves: curve.Curves
    seconds: float = 0.0

    def summary(self) -> dict[str, object]:
        """The object that `--json` prints."""
        rows = [{"step": s.step, "path": s.path, "size": s.size, **self.curves.at(s.step)} for s in self.steps]
        return {
            "outcome": self.outcome,
            "findings": self.findings,
            "checks_not_run": self.checks_not_run,
            "path": self.path,
            "steps": rows,
            "seconds": self.seconds,
        }


def series(
    steps: Mapping[int, str],
    path: str = "",
    *,
    read: bool = True,
    workers: int = 0,
    keep: str | Path | None = None,
    done: Advance | None = None,
) -> SeriesAudit:
    """Audits a series of checkpoints of one run.

    Parameters
    ----------
    steps : step label -> path.
    path : what to call the series.
    read : whether to read the tensors; else only headers and digests are looked at.
    workers : processes side by side; 0: this one.
    keep : a folder for finished fingerprints, so that a stopped audit goes on.
    done : called when a step has been read.

    Raises
    ------
    PretraceError
        If there are fewer than two steps.
    """
    began = time.perf_counter()
    if len(steps) < 2:
        raise PretraceError(
            "a series has at least two steps", path, "name the folder that holds the steps, or list them"
        )
    seen = tuple(look(step, where) for step, where in sorted(steps.items()))
    findings = [finding for s in seen for finding in s.findings]
    findings += [*labels(seen), *same_files(seen), *dtype_changes(seen), *name_changes(seen), *missing(seen)]
    not_run: list[CheckNotRun] = []
    prints: dict[int, Fingerprint] = {}
    if read:
        prints = _read(seen, workers, keep, not_run, done)
        findings += same_tensors(seen, prints)
    else:
        not_run.append(CheckNotRun("curves of norm and distance", "the tensors were not read (--no-read)"))
    curves = curve.curves(prints)
    findings += curve.breaks(curves, {s.step: s.path for s in seen})
    if len(curves.steps) < curve.ENOUGH:
        not_run.append(CheckNotRun("breaks in the curve of the norm", f"needs {curve.ENOUGH} steps that are their own"))
    findings.sort(key=lambda f: {"error": 0, "warning": 1, "info": 2}[f.severity])
    return SeriesAudit(
        path, outcome_of(findings), tuple(findings), tuple(not_run), seen, curves, time.perf_counter() - began
    )


def _read(
    steps: Sequence[Step],
    workers: int,
    keep: str | Path | None,
    not_run: list[CheckNotRun],
    done: Advance | None,
) -> dict[int, Fingerprint]:
    """Fingerprints of the steps; one for each content, whatever number of steps share it."""
    first: dict[tuple[tuple[str, int], ...], Step] = {}
    for step in steps:
        if step.shards:
            first.setdefault(tuple(sorted((s.digest, s.size) for s in step.shards)), step)
    tasks = {f"step-{s.step:010d}": s.path for s in first.values()}
    by_path: dict[str, Fingerprint] = {}
    for result in map_tasks(_fingerprint, tasks, workers=workers, keep=keep):
        if result.ok:
            by_path[tasks[result.key]] = result.get()
        else:
            not_run.append(CheckNotRun(f"values of {result.key}", result.error.strip().splitlines()[0]))
        if done is not None:
            done(result.key)
    # A step that only repeats another one's files has no curve of its own.
    return {s.step: by_path[s.path] for s in first.values() if s.path in by_path}


def _fingerprint(path: str) -> Fingerprint:
    found = survey(path)
    if found.view is None:
        raise DamagedFile(found.findings[0].code, found.findings[0].what, found.findings[0].where)
    with found.view as view:
        return fingerprint(view, path)
