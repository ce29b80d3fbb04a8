"""One conversion from beginning to end: plan, write under a temporary name, prove, rename.

The target appears only when the proof is complete. Until then the work stands in `.pretrace-convert-NAME` beside it; the same
command goes on there after a kill, and nothing else takes that folder for a checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretrace.checkpoint.give_back import trim
from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.recorded import NAME
from pretrace.checkpoint.slabs import make_room
from pretrace.convert.cast import CastView, Rounding, rounding_findings, rounding_of
from pretrace.convert.companions import NAMES as COMPANIONS
from pretrace.convert.companions import carry_over, copy_companions
from pretrace.convert.engine import Job, make_files, write_rest, write_tensors
from pretrace.convert.journal import JOURNAL, Journal, is_journal_of
from pretrace.convert.plan import Plan, plan
from pretrace.convert.probe import Probe
from pretrace.convert.proof import Proof, prove_bits, prove_soundness
from pretrace.convert.prove_logits import probe_for, prove_logits
from pretrace.convert.record import Conversion, record_of
from pretrace.convert.request import Request
from pretrace.convert.residuals import FILE as RESIDUALS
from pretrace.convert.residuals import Restored, write_residuals
from pretrace.convert.source import Source, check_unchanged, open_source
from pretrace.convert.store import write_store
from pretrace.convert.target import check_target, empty, keep_only, locked_work, publish
from pretrace.convert.together import Together, alone, finish_share, gather_shares
from pretrace.convert.units import share_of
from pretrace.errors import PretraceError
from pretrace.files import write_json, write_text
from pretrace.findings import CheckNotRun

Tell = Callable[[str, int, int], None]  # what is being done, bytes of it just done, bytes in all (0: not known)


@dataclass(frozen=True, slots=True)
class Settings:
    """How it is done: none of this changes a byte of the result."""

    threads: int
    probe: str  # a text, ids in .npy, or '' for the usual text
    logits: bool  # prove the logits too (needs torch)
    damaged: bool  # the source is known to be damaged: what the audit finds does not stop the conversion
    model: Path | None  # a configuration that says what the source does not
    together: Together = alone


def convert(
    source: str, target: Path, request: Request, settings: Settings, tell: Tell = lambda what, n, total: None
) -> Conversion | None:
    """Converts `source` to `target`; None for a writer that did its share and leaves the proof to writer 0.

    Raises
    ------
    PretraceError
        If anything fails: then there is no target. What was written is kept for the same command where that helps.
    """
    clock = _Clock()
    check_target(source, target)
    opened = open_source(source, settings.model, unknown_may_go=settings.damaged)
    try:
        planned = plan(opened, request)
        if settings.together.hosts > 1 and isinstance(planned.layout, StoreLayout):
            raise PretraceError(
                "several writers share no OCDBT database", str(target), "write chunks as files: --no-ocdbt"
            )
        probe = probe_for(planned, settings.probe) if settings.logits and not settings.together.host else None
        settings.together.meet(target.parent, planned.agreement)
        with locked_work(target, settings.together) as work:
            clock.until("plan")
            _write(planned, work, settings, tell)
            trim()  # what was freed while it was written would lie beside what the proof needs
            clock.until("write")
            if settings.together.host:
                return None
            _only_planned(planned, work)
            proof, rounding = _prove(planned, work, settings, tell, clock, probe)
            _refuse_failures(proof, work)
            Journal(work, planned.digest).remove()
            record = record_of(planned, proof, rounding, work)
            _describe(record, planned.request.to, work)
            clock.until("describe")
            publish(record["files"], work, target)
            clock.until("publish")
        size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
        n = len(planned.layout.names)
        return Conversion(str(target), n, size, proof, clock.stages, planned, rounding)
    finally:
        opened.close()


class _Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.perf_counter()

    def until(self, stage: str) -> None:
        """Ends a stage."""
        now = time.perf_counter()
        self.stages[stage] = now - self._last
        self._last = now


def _write(planned: Plan, work: Path, settings: Settings, tell: Tell) -> None:
    together, layout = settings.together, planned.layout
    if together.hosts == 1 and not is_journal_of(work, planned.digest):
        empty(work)  # of another plan
    journal = Journal(work, planned.digest, together.host)
    if isinstance(layout, StoreLayout):
        total = sum(unit.size_bytes for unit in planned.work.units)
        write_store(layout, planned.work, work, settings.threads, journal, lambda n: tell("converting", n, total))
    else:
        _write_files(planned, layout, work, settings, journal, tell)
    if together.host == 0:
        copy_companions(planned, work)
        carry_over(planned, work)


def _only_planned(planned: Plan, work: Path) -> None:
    if isinstance(planned.layout, Layout):
        known = {file.path for file in planned.layout.files} | {*COMPANIONS, RESIDUALS, NAME, JOURNAL, "README.md"}
        keep_only(work, known)


def _write_files(planned: Plan, layout: Layout, work: Path, settings: Settings, journal: Journal, tell: Tell) -> None:
    together = settings.together
    try:
        make_files(layout, work)
    except PretraceError:
        if together.hosts == 1 and not journal.done:
            shutil.rmtree(work, ignore_errors=True)  # reserved room helps nobody
        raise
    mine = share_of(planned.work.units, together.hosts, together.host)
    total = sum(unit.size_bytes for unit in mine)
    job = Job(layout, planned.work, work, settings.threads, journal, lambda n: tell("converting", n, total))
    write_tensors(job, mine, sync_last=together.hosts > 1)
    finish_share(together, planned.agreement, layout, work, mine)
    if together.host == 0:
        gather_shares(together, planned.agreement, layout, planned.work.units, work)
        write_rest(layout, work, settings.threads)


def _prove(
    planned: Plan, work: Path, settings: Settings, tell: Tell, clock: _Clock, probe: Probe | None
) -> tuple[Proof, dict[str, Rounding]]:
    proof, back = prove_bits(planned, work, settings.threads, tell)
    clock.until("read back")
    make_room()
    trim()
    rounding = _rounding(planned, proof, settings)
    try:
        check_unchanged(planned.source)
    except PretraceError:
        shutil.rmtree(work, ignore_errors=True)  # a part of it may be of the old content
        raise
    if back is None:
        return proof, rounding
    try:
        back = _with_residuals(proof, back, work)
        if not proof.failures:
            prove_soundness(proof, planned, back, work, settings.threads, damaged=settings.damaged, tell=tell)
        clock.until("audit")
        if not settings.logits:
            proof.not_run.append(CheckNotRun("logits of both sides and loss on real text", "as asked: --no-logits"))
        if probe is not None and not proof.failures:
            tell("asking both sides", 0, 0)
            prove_logits(proof, planned, back, work, probe)
        clock.until("logits")
    finally:
        back.close()
    return proof, rounding


def _rounding(planned: Plan, proof: Proof, settings: Settings) -> dict[str, Rounding]:
    wanted = planned.wanted
    if not isinstance(wanted, CastView):
        return {}
    made = {name: r for name in wanted.names() if (r := rounding_of(wanted, name)) is not None}
    findings = rounding_findings(made)
    proof.findings += [f for f in findings if f.severity != "error" or not settings.damaged]
    return made


def _with_residuals(proof: Proof, back: Source, work: Path) -> Source:
    """Writes what scaled moves rounded beside the tensors, and puts it back into what was read."""
    assert proof.round_trip is not None
    residuals = proof.round_trip.residuals
    if not residuals:
        return back
    write_residuals(work, residuals)
    return replace(back, view=Restored(back.view, residuals), restored=True)


def _refuse_failures(proof: Proof, work: Path) -> None:
    if not proof.failures:
        return
    shutil.rmtree(work, ignore_errors=True)
    first, more = proof.failures[0], len(proof.failures) - 1
    also = f" (and {more} more faults)" if more else ""
    raise PretraceError(f"the proof failed, nothing was kept: {first.what}{also}", first.where, first.mend or "report this",
                        exit_code=1)  # fmt: skip


def _describe(record: dict[str, Any], to: str, work: Path) -> None:
    """The record and, for a hub's kind of folder, the model card."""
    from pretrace.convert.card import card_of

    write_json(work / NAME, record)
    if to == "hf":
        write_text(work / "README.md", card_of(record))
