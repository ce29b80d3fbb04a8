"""One checkpoint: every check that needs nothing else, then those against a reference and on a probe text."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import pretrace.audit.depth as depth
import pretrace.audit.keys as keys
import pretrace.audit.shapes as shapes
import pretrace.audit.values as values
from pretrace.audit.against import against
from pretrace.audit.holes import zero_regions
from pretrace.audit.probe import Probe, probe_findings
from pretrace.audit.subject import Said, Subject, subject_of
from pretrace.audit.zeros import Region
from pretrace.checkpoint.detect import Survey, survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.names import canonical
from pretrace.checkpoint.view import StateView
from pretrace.compare.fingerprint import Fingerprint
from pretrace.compare.names import names_of
from pretrace.compare.passes import Advance
from pretrace.compare.statistics import Table, statistics
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.findings import CheckNotRun, Finding, Outcome, outcome_of

NO_VIEW = "the file could not be opened"
_ORDER = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Audit:
    """What an audit says: outcome, findings (the worst first), and the checks that could not be made."""

    path: str
    format: str
    outcome: Outcome
    findings: tuple[Finding, ...]
    checks_not_run: tuple[CheckNotRun, ...]
    tensors: int
    parameters: int
    size_present: int
    size_expected: int
    read: int  # bytes of tensor data that were read
    table: Table | None = None
    regions: dict[str, list[Region]] = field(default_factory=dict)
    seconds: float = 0.0

    def summary(self) -> dict[str, object]:
        """The object that `--json` prints: scripts rely on these keys."""
        return {
            "outcome": self.outcome,
            "findings": self.findings,
            "checks_not_run": self.checks_not_run,
            "path": self.path,
            "format": self.format,
            "tensors": self.tensors,
            "parameters": self.parameters,
            "size_present": self.size_present,
            "size_expected": self.size_expected,
            "read": self.read,
            "seconds": self.seconds,
        }


def checkpoint(
    path: str | os.PathLike[str],
    *,
    reference: StateView | Fingerprint | None = None,
    probe: Probe | None = None,
    threads: int | None = None,
    advance: Advance | None = None,
) -> Audit:
    """Audits one checkpoint.

    Parameters
    ----------
    path : a file, a folder, or an address.
    reference : a checkpoint that should hold the same tensors, or the fingerprint of one.
    probe : a text, and the loss it should have; needs torch.
    threads : readers side by side; None takes the cores of the machine, four at most.
    advance : called with the bytes just read.

    Raises
    ------
    PretraceError
        If the path does not exist, or nothing there looks like a checkpoint.
    """
    began = time.perf_counter()
    seen = survey(path, deep=True)
    said = Said(list(seen.findings))
    if seen.view is None:
        for check in ("values", "keys", "layouts against a reference", "loss on a probe text"):
            said.skip(check, NO_VIEW)
        return _made(seen, said, None, {}, began)
    with seen.view as view:
        return _open(seen, view, said, reference, probe, threads, advance, began)


def _open(
    seen: Survey,
    view: StateView,
    said: Said,
    reference: StateView | Fingerprint | None,
    probe: Probe | None,
    threads: int | None,
    advance: Advance | None,
    began: float,
) -> Audit:
    if not _readable(said):
        # Missing chunks read as zeros and missing files not at all: values would be findings on the reader, not on the run.
        said.skip(
            "values", "parts of the tensors are missing (see the errors): what would be read are not their values"
        )
        said.skip("layouts against a reference", "parts of the tensors are missing")
        said.skip("loss on a probe text", "parts of the tensors are missing")
        return _made(seen, said, None, {}, began)
    view = _layers_apart(view)
    try:
        table = statistics(view, threads=threads, advance=advance)
    except DamagedFile as error:
        said.add([error.finding()] if error.finding() not in said.findings else [])
        said.skip("values", "a part of the file cannot be read")
        return _made(seen, said, None, {}, began)
    subject = subject_of(seen, view, table)
    regions = _values(subject, said)
    _structure(subject, said)
    if reference is None:
        said.skip(
            "layouts against a reference",
            "none given (--reference): swapped layers, QKV and rotary order, transposed "
            "squares and single flipped bits cannot be seen in statistics",
        )
    else:
        against(subject, reference, said)
    if probe is None:
        said.skip("loss on a probe text", "none given (--probe TEXT): a wrong layout shows in the loss only")
    else:
        probe_findings(subject, probe, said)
    return _made(seen, said, subject.table, regions, began)


def _layers_apart(view: StateView) -> StateView:
    """Stacked (scanned) layers are seen one by one, under canonical names: layers can be compared only when they are apart."""
    if not any("{i}" in known for known in names_of(view).of.values()):
        return view
    try:
        return canonical(view)
    except PretraceError:
        return view  # the layout does not fit: a finding of its own


def _readable(said: Said) -> bool:
    return not any(
        f.severity == "error" and f.code.split("-")[0] in ("files", "chunks", "lost", "zip", "crc", "size")
        for f in said.findings
    )


def _values(subject: Subject, said: Said) -> dict[str, list[Region]]:
    findings, regions = zero_regions(subject)
    said.add(findings)
    for check in (values.not_finite, values.spikes, values.padding_rows, values.odd_values, values.norms):
        said.add(check(subject))
    flagged = {t.name for t in subject.floats if any(t.name in str(f.where) for f in said.findings)} | set(regions)
    said.add(depth.duplicates(subject))
    said.add(depth.odd_scale(subject, flagged))
    said.add(depth.untrained(subject))
    if subject.table.not_read:
        said.skip(f"values of {len(subject.table.not_read)} tensors", "their format packs several elements in a byte")
    return regions


def _structure(subject: Subject, said: Said) -> None:
    keys.keys(subject, said)
    shapes.shapes(subject, said)
    for check in (shapes.dtypes, keys.tied, keys.step):
        said.add(check(subject))


def _made(seen: Survey, said: Said, table: Table | None, regions: dict[str, list[Region]], began: float) -> Audit:
    view = seen.view
    infos = [view.info(name) for name in view.names()] if view is not None else []
    findings = sorted(said.findings, key=lambda f: _ORDER[f.severity])
    read = sum(dtype(t.dtype).size_bytes(t.numel) for t in table.tensors) if table is not None else 0
    return Audit(
        path=seen.path,
        format=seen.format,
        outcome=outcome_of(findings, undecided=view is None),
        findings=tuple(findings),
        checks_not_run=tuple(said.not_run),
        tensors=len(infos),
        parameters=sum(info.numel for info in infos),
        size_present=seen.size_present,
        size_expected=seen.size_expected,
        read=read,
        table=table,
        regions=regions,
        seconds=time.perf_counter() - began,
    )
