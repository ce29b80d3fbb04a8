"""The steps of a series, and what their labels, names and headers say; nothing large is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pretrace.audit.files import Shard, shards_of
from pretrace.checkpoint.detect import survey
from pretrace.findings import Finding


@dataclass(frozen=True)
class Step:
    """One checkpoint of the series: its label, and what its files say without being read."""

    step: int
    path: str
    format: str
    size: int
    inside: int | None  # the step that the files themselves name
    dtypes: tuple[str, ...]
    names: tuple[str, ...]
    shards: tuple[Shard, ...]
    findings: tuple[Finding, ...]


def look(step: int, path: str) -> Step:
    """Opens one checkpoint of the series and keeps what its headers and digests say."""
    found = survey(path)
    name = os.path.basename(path.rstrip("/"))
    findings = tuple(
        Finding(f.code, f.severity, f"{name}: {f.what}", f.where, f.evidence, f.mend) for f in found.findings
    )
    if found.view is None:
        return Step(step, path, found.format, found.size_present, None, (), (), (), findings)
    with found.view as view:
        infos = [view.info(n) for n in view.names()]
        dtypes = tuple(sorted({info.dtype for info in infos}))
        return Step(
            step,
            path,
            found.format,
            found.size_present,
            found.step,
            dtypes,
            tuple(sorted(view.names())),
            shards_of(path, found.files, found.sha256),
            findings,
        )


def labels(steps: Sequence[Step]) -> list[Finding]:
    """The step that the files name against the label."""
    return [
        Finding(
            "step-name",
            "error",
            f"{called(s)} is labelled step {s.step}, its files say {s.inside}",
            s.path,
            {"label": s.step, "inside": s.inside},
            "find out which one is right",
        )
        for s in steps
        if s.inside is not None and s.inside != s.step
    ]


def dtype_changes(steps: Sequence[Step]) -> list[Finding]:
    """Steps stored in another format than the one before."""
    changes = [(a, b) for a, b in pairwise(steps) if a.dtypes and b.dtypes and a.dtypes != b.dtypes]
    return [
        Finding(
            "dtype-change",
            "warning",
            f"{called(a)} is {', '.join(a.dtypes)}, {called(b)} is {', '.join(b.dtypes)}",
            b.path,
            {"before": a.dtypes, "after": b.dtypes},
            "compare within one dtype: rounding looks like an update",
        )
        for a, b in changes
    ]


def name_changes(steps: Sequence[Step]) -> list[Finding]:
    """Steps that hold other tensors than the one before."""
    findings = []
    for a, b in pairwise(steps):
        lost, new = set(a.names) - set(b.names), set(b.names) - set(a.names)
        if a.names and b.names and (lost or new):
            findings.append(
                Finding(
                    "keys-change",
                    "error",
                    f"{called(b)} lacks {len(lost)} tensors of {called(a)} and has {len(new)} others",
                    b.path,
                    {"missing": sorted(lost)[:20], "extra": sorted(new)[:20]},
                    "restore the step",
                )
            )
    return findings


def missing(steps: Sequence[Step]) -> list[Finding]:
    """Steps left out of a regular spacing: a gap of several spacings between two regular ones."""
    numbers = [s.step for s in steps]
    gaps = [b - a for a, b in pairwise(numbers)]
    missing = []
    for i in range(1, len(gaps) - 1):
        usual = gaps[i - 1]
        if usual == gaps[i + 1] and gaps[i] > usual and gaps[i] % usual == 0:
            missing += list(range(numbers[i] + usual, numbers[i + 1], usual))
    if not missing:
        return []
    return [
        Finding(
            "trajectory-missing",
            "warning",
            f"{len(missing)} steps are missing from the regular spacing: {listed(missing)}",
            f"step {missing[0]}",
            {"steps": missing},
            "fetch them, or note that they were never saved",
        )
    ]


def called(step: Step) -> str:
    """What people call the step: the last part of its path, or its number where that is a commit."""
    return f"step{step.step}" if "://" in step.path else os.path.basename(step.path.rstrip("/"))


def listed(numbers: list[int]) -> str:
    """The first eight numbers and the last."""
    return ", ".join(map(str, numbers[:8])) + (f", ... {numbers[-1]}" if len(numbers) > 8 else "")
