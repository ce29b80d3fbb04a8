"""The proof of a conversion: everything that can be asked of the result before it may be called one. The first half, in bits.

1. read back, mapped home, equal bit for bit; 2. the files' hashes, read by one reader; 3. an audit of the target; 4. the target's
own configuration gives the same model; 5. logits of both sides by implementations that share no code; 6. the loss on real text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrace.checkpoint.names import best_table
from pretrace.checkpoint.recorded import changed_since
from pretrace.checkpoint.table import Move, Table
from pretrace.checkpoint.vocabulary import TALL
from pretrace.convert.logits import (
    Distance,
)
from pretrace.convert.plan import Plan
from pretrace.convert.roundtrip import RoundTrip, round_trip
from pretrace.convert.source import Source, open_source
from pretrace.errors import PretraceError
from pretrace.findings import CheckNotRun, Finding, Severity

_REPORT = "report this: a table or a writer of pretrace is at fault"
Tell = Callable[[str, int, int], None]  # what is being done, bytes of it just done, bytes in all (0: not known)

# What the frameworks of these targets compute whatever the file says; the layout's notes name it.
FIXED = {"nanogpt": ("activation", "norm_eps"), "llmc": ("activation", "norm_eps")}


@dataclass
class Proof:
    """What was asked and answered. `failures` is empty or the target may not appear."""

    round_trip: RoundTrip | None = None
    distances: list[Distance] = field(default_factory=list)
    probe: str = ""
    probe_loss: float | None = None
    source_loss: float | None = None
    rounding_kl: float | None = None  # mean KL of the logits that rounding to another dtype costs
    rounded_layout: Distance | None = (
        None  # the target without the values that are kept beside: what its framework reads
    )
    findings: list[Finding] = field(default_factory=list)
    not_run: list[CheckNotRun] = field(default_factory=list)

    @property
    def failures(self) -> list[Finding]:
        """The findings that say that the target is not the source."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def whole(self) -> bool:
        """Whether logits were compared: bits that come back say nothing about a table that is wrong in both directions."""
        return bool(self.distances)

    @property
    def logits_max_ulp(self) -> float | None:
        """The largest distance of any voice from the decoder on the source."""
        return max((d.max_ulp for d in self.distances), default=None)

    def summary(self) -> dict[str, Any]:
        """The object under `proof` of `--json` and conversion.json: scripts rely on the first three keys."""
        trip = self.round_trip
        return {
            "round_trip": "bitwise" if trip is not None and not trip.wrong else "failed",
            "logits_max_ulp": self.logits_max_ulp,
            "probe_loss": self.probe_loss,
            "whole": self.whole,
            "residuals": trip.n_residuals if trip is not None else 0,
            "elements": trip.elements if trip is not None else 0,
            "logits": self.distances,
            "probe": self.probe,
            "source_loss": self.source_loss,
            "rounding_kl": self.rounding_kl,
            "rounded_layout": self.rounded_layout,
            "findings": self.findings,
            "checks_not_run": self.not_run,
        }


def prove_bits(plan: Plan, folder: Path, threads: int, tell: Tell) -> tuple[Proof, Source | None]:
    """The first half, without torch: the target opens, comes back bit for bit, and its configuration is complete."""
    proof = Proof()
    try:
        back = open_source(folder)
    except PretraceError as error:
        proof.findings.append(
            Finding("unreadable", "error", f"the target cannot be read back: {error.what}", error.where, {}, error.mend)
        )
        return proof, None
    total = plan.layout.size_bytes
    table = best_table(back.raw)
    proof.round_trip = round_trip(plan.wanted, back.view, table, threads, lambda n: tell("reading back", n, total))
    for wrong in proof.round_trip.wrong:
        proof.findings.append(Finding("round-trip", "error", f"{wrong.name} {wrong.why}", wrong.name, {}, _REPORT))
    proof.findings += config_findings(plan, back)
    return proof, back


def config_findings(plan: Plan, back: Source) -> list[Finding]:
    """The values of the model that the target's own files say otherwise, or do not say."""
    wanted, found = plan.spec.model_dump(), back.model.spec.model_dump()
    rows = _target_rows(plan)
    free = {"dropout", "init"} | (
        {"max_seq_len"} if wanted["position"] == "rotary" and plan.request.to == "maxtext" else set()
    )
    made = []
    for key in (k for k in wanted if k not in free and wanted[k] != found[k]):
        if key == "vocab_size" and found[key] == rows:
            continue
        what = f"the target's configuration says {key} {found[key]}, the model has {wanted[key]}"
        evidence = {"target": found[key], "source": wanted[key]}
        if key in FIXED.get(plan.request.to, ()):
            mend = f"{plan.request.to} computes {found[key]} whatever the file says"
            made.append(Finding("config", "warning", what, key, evidence, mend))
        else:
            made.append(Finding("config", "error", what, key, evidence, _REPORT))
    return made


def _target_rows(plan: Plan) -> int:
    """Rows of the embedding in the target: llm.c pads them to a multiple of 128."""
    return -(-plan.spec.vocab_size // 128) * 128 if plan.request.to == "llmc" else plan.spec.vocab_size


def prove_soundness(
    proof: Proof, plan: Plan, back: Source, folder: Path, threads: int, *, damaged: bool, tell: Tell
) -> None:
    """An audit of the target: zeros, non-finite values, spikes, layers twice. `damaged`: the source is known to be so."""
    from pretrace.audit import checkpoint

    audit = checkpoint(folder, threads=threads, advance=lambda n: tell("auditing", n, 0))
    severity: Severity = "warning" if damaged else "error"
    # Checksums, replicas that tensor-parallel ranks should share; the hashes that an earlier conversion left.
    for finding in (*plan.source.raw.verify(), *changed_since(plan.source.path)):
        if finding.severity == "error":
            what = f"the source: {finding.what}"
            proof.findings.append(Finding(finding.code, severity, what, finding.where, finding.evidence, finding.mend))
    for finding in audit.findings:
        if finding.severity == "error" and not _is_our_padding(finding, plan, back):
            kept = Finding(finding.code, severity, f"audit: {finding.what}", finding.where,
                           finding.evidence, "the source is like that: mend it, or go on with --damaged")  # fmt: skip
            proof.findings.append(kept)


def _is_our_padding(finding: Finding, plan: Plan, back: Source) -> bool:
    """Whether rows of zeros are those that this conversion added to the vocabulary."""
    zeros = finding.evidence
    told = plan.source.view.metadata().get("vocab_rows_used")
    used = told if type(told) is int else plan.source.model.spec.vocab_size
    if (
        finding.code != "zero-region"
        or zeros["start"] < used
        or not zeros["stop"] == zeros["size"] == _target_rows(plan)
    ):
        return False
    table = best_table(back.raw)
    return all(name in TALL or _is_tall_there(table, name) for name in zeros["tensors"])


def _is_tall_there(table: Table | None, stored: str) -> bool:
    rule = table.match(stored) if table is not None else None
    return rule is not None and isinstance(rule[0], Move) and rule[0].ours in TALL
