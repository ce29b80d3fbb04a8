"""The proof of a conversion: everything that can be asked of the result before it may be called one.

1. read back, mapped home, equal bit for bit; 2. the files' hashes, read by one reader; 3. an audit of the target; 4. the target's
own configuration gives the same model; 5. logits of both sides by implementations that share no code; 6. the loss on real text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.names import best_table
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.vocabulary import with_rows
from pretrace.convert.logits import (
    Distance,
    Voice,
    decoder_voice,
    distance,
    fits_in_memory,
    mean_loss,
    second_voice,
    transformers_voice,
)
from pretrace.convert.plan import Plan
from pretrace.convert.probe import Probe, ordinary, probe_of
from pretrace.convert.roundtrip import RoundTrip, round_trip
from pretrace.convert.source import Source, open_source
from pretrace.dtypes import to_float
from pretrace.errors import PretraceError
from pretrace.findings import CheckNotRun, Finding, Severity
from pretrace.score.start import judge_start

_ROUNDING_KL = 0.05  # nats: bfloat16 and float16 cost trained models 1e-6 to 1e-3
_REPORT = "report this: a table or a writer of pretrace is at fault"
_LAYOUT = "a layout is wrong: rotary order, fused heads, a transposed square, or padding"
Tell = Callable[[str, int, int], None]  # what is being done, bytes of it just done, bytes in all (0: not known)

# What the frameworks of these targets compute whatever the file says; the layout's notes name it.
_FIXED = {"nanogpt": ("activation", "norm_eps"), "llmc": ("activation", "norm_eps")}


@dataclass
class Proof:
    """What was asked and answered. `failures` is empty or the target may not appear."""

    round_trip: RoundTrip | None = None
    distances: list[Distance] = field(default_factory=list)
    probe: str = ""
    probe_loss: float | None = None
    source_loss: float | None = None
    rounding_kl: float | None = None  # mean KL of the logits that rounding to another dtype costs
    findings: list[Finding] = field(default_factory=list)
    not_run: list[CheckNotRun] = field(default_factory=list)

    @property
    def failures(self) -> list[Finding]:
        """The findings that say that the target is not the source."""
        return [finding for finding in self.findings if finding.severity == "error"]

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
            "residuals": trip.n_residuals if trip is not None else 0,
            "elements": trip.elements if trip is not None else 0,
            "logits": self.distances,
            "probe": self.probe,
            "source_loss": self.source_loss,
            "rounding_kl": self.rounding_kl,
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
        if key in _FIXED.get(plan.request.to, ()):
            mend = f"{plan.request.to} computes {found[key]} whatever the file says"
            made.append(Finding("config", "warning", what, key, evidence, mend))
        else:
            made.append(Finding("config", "error", what, key, evidence, _REPORT))
    return made


def _target_rows(plan: Plan) -> int:
    """Rows of the embedding in the target: llm.c pads them to a multiple of 128."""
    return -(-plan.spec.vocab_size // 128) * 128 if plan.request.to == "llmc" else plan.spec.vocab_size


def prove_soundness(proof: Proof, source: StateView, folder: Path, threads: int, *, damaged: bool, tell: Tell) -> None:
    """An audit of the target: zeros, non-finite values, spikes, layers twice. `damaged`: the source is known to be so."""
    from pretrace.audit import checkpoint

    audit = checkpoint(folder, threads=threads, advance=lambda n: tell("auditing", n, 0))
    for finding in source.verify():  # checksums, replicas that tensor-parallel ranks should share
        if finding.severity == "error":
            severity: Severity = "warning" if damaged else "error"
            what = f"the source: {finding.what}"
            proof.findings.append(Finding(finding.code, severity, what, finding.where, finding.evidence, finding.mend))
    for finding in audit.findings:
        if finding.severity == "error":
            kept = Finding(finding.code, "warning" if damaged else "error", f"audit: {finding.what}", finding.where,
                           finding.evidence, "the source is like that: mend it, or go on with --damaged")  # fmt: skip
            proof.findings.append(kept)


def prove_logits(proof: Proof, plan: Plan, back: Source, folder: Path, probe: Probe) -> None:
    """The second half: both sides speak, each by two implementations where there are two."""
    probe = ordinary(probe, _magnitude(plan.wanted, probe.ids))
    proof.probe = f"{probe.ids.shape[0]} x {probe.ids.shape[1] - 1} tokens, {probe.about}"
    if not fits_in_memory(plan.spec):
        why = "two float32 copies of the model do not fit into the memory that is left"
        proof.not_run.append(CheckNotRun("logits of both sides", why))
        return
    rows = min(plan.source.model.spec.vocab_size, plan.spec.vocab_size)
    wanted = decoder_voice("source", _weights(plan.wanted), plan.spec, probe.tokens)
    if not np.isfinite(wanted.logits[..., :rows]).all():
        _not_finite(proof)
        return
    stored = wanted
    if plan.request.dtype != "keep":  # what the source itself says, before its values were rounded
        stored = decoder_voice("source", _weights(plan.source.view), plan.source.model.spec, probe.tokens)
        _rounding_cost(proof, distance(wanted, stored, rows))
    voices = _voices(proof, plan, back, folder, probe)
    for voice in voices:
        _judge(proof, distance(voice, stored if voice.side == "source" else wanted, rows))
    _losses(proof, plan, stored, voices[0], probe, rows)


def probe_for(plan: Plan, given: str) -> Probe:
    """The tokens that both sides will be asked.

    Raises
    ------
    PretraceError
        If the given text or ids cannot be used.
    """
    rows = min(plan.source.model.spec.vocab_size, plan.spec.vocab_size)
    return probe_of(plan.source.path, given, rows, plan.spec.max_seq_len)


def _magnitude(view: StateView, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The largest value of the embedding's row of each id."""
    info = view.info("embed.weight")
    width = info.shape[1]
    largest = {
        i: float(np.abs(to_float(view.read("embed.weight", i * width, (i + 1) * width), info.dtype)).max())
        for i in np.unique(ids).tolist()
    }
    return np.array([largest[i] for i in ids.ravel().tolist()]).reshape(ids.shape)


def _not_finite(proof: Proof) -> None:
    """The source's own logits are NaN or infinite: nothing can be compared with them."""
    what = "the source's own logits are not finite: its damage reaches every output"
    proof.findings.append(Finding("logits-nonfinite", "warning", what, "", {}, "mend the source (see the audit)"))
    proof.not_run.append(CheckNotRun("logits of both sides", "the source's are not finite"))
    proof.not_run.append(CheckNotRun("loss on real text", "the source's logits are not finite"))


def _judge(proof: Proof, measured: Distance) -> None:
    proof.distances.append(measured)
    if not measured.agrees:
        far = f"{measured.max_ulp:.3g} ulp from those of pretrace's decoder on the source (KL {measured.kl:.2g})"
        what = f"the logits of the {measured.side} by {measured.by} are {far}"
        evidence = {"max_ulp": measured.max_ulp, "kl": measured.kl}
        proof.findings.append(Finding("logits", "error", what, measured.side, evidence, _LAYOUT))


def _rounding_cost(proof: Proof, cost: Distance) -> None:
    proof.rounding_kl = cost.kl
    if cost.kl > _ROUNDING_KL:
        what = f"the rounding moves the logits by KL {cost.kl:.2g} nats"
        proof.findings.append(Finding("rounding", "warning", what, "--dtype", {"kl": cost.kl}, "keep the stored dtype"))


def _voices(proof: Proof, plan: Plan, back: Source, folder: Path, probe: Probe) -> list[Voice]:
    # llm.c's rows beyond the vocabulary are cut again: the decoder has none.
    read = with_rows(_weights(back.view), plan.spec.vocab_size)
    voices = [decoder_voice("target", read, plan.spec, probe.tokens)]
    source = plan.source
    for side, raw, spec in (("target", back.raw, plan.spec), ("source", source.raw, source.model.spec)):
        voice = second_voice(side, raw, spec, probe.tokens)
        if voice is None:
            why = "its names belong to no framework that has one"
            proof.not_run.append(CheckNotRun(f"second reading of the {side}", why))
        else:
            voices.append(voice)
    if plan.request.to == "hf" and plan.spec.family != "native":
        try:
            voices.append(transformers_voice("target", folder, probe.tokens))
        except ImportError:
            proof.not_run.append(CheckNotRun("logits by transformers", "it is not installed"))
        except PretraceError as error:
            proof.findings.append(Finding("transformers", "error", error.what, "", {}, error.mend))
    return voices


def _losses(proof: Proof, plan: Plan, source: Voice, target: Voice, probe: Probe, rows: int) -> None:
    """The starting loss of the target: what the source has, and neither guessing nor worse."""
    if not probe.text:
        why = "no tokenizer.json beside the source; --probe IDS.npy gives tokens"
        proof.not_run.append(CheckNotRun("loss on real text", why))
        return
    proof.source_loss = mean_loss(source.logits[..., :rows], probe.targets)
    proof.probe_loss = mean_loss(target.logits[..., :rows], probe.targets)
    of_source = judge_start(proof.source_loss, plan.spec.vocab_size)
    of_target = judge_start(proof.probe_loss, plan.spec.vocab_size, expected=proof.source_loss)
    evidence = {"target": proof.probe_loss, "source": proof.source_loss, "guessing": of_source.guessing}
    if of_source.outcome in ("untrained", "broken"):
        mend = "audit the source, or give text of its kind (--probe)"
        proof.findings.append(Finding("loss", "warning", f"the source: {of_source.sentence()}", "", evidence, mend))
    elif not of_target.fine:
        proof.findings.append(Finding("loss", "error", f"the target: {of_target.sentence()}", "", evidence, _LAYOUT))


def _weights(view: StateView) -> StateView:
    from pretrace.checkpoint.optimizer_names import weights_of

    return weights_of(view)
