"""A finding: something a check saw, with its evidence and how to mend it. Also: the checks that were not run, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Outcome = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen where, on which evidence.

    `code` is a stable short name (`lost-chunks`); `evidence` holds plain numbers and strings that a reader can recompute.
    """

    code: str
    severity: Severity
    what: str
    where: str
    evidence: dict[str, Any] = field(default_factory=dict)
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CheckNotRun:
    """A check that could not be made: nothing may be called sound for want of it."""

    check: str
    why: str


def outcome_of(findings: Iterable[Finding], *, undecided: bool = False) -> Outcome:
    """`fail` with an error among the findings; else `undecided` where the essential could not be checked; else `pass`."""
    if any(finding.severity == "error" for finding in findings):
        return "fail"
    return "undecided" if undecided else "pass"
