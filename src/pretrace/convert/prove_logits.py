"""The second half of the proof: both sides are asked a probe, each by implementations that share no code.

pretrace's decoder on the canonical tensors, the second reading on the stored ones, and transformers on every folder that it
loads: on the target, and on the source too, whose config.json it understands without our help.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.optimizer_names import weights_of
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.vocabulary import with_rows
from pretrace.convert.logits import (
    Distance,
    Voice,
    decoder_voice,
    distance,
    fits_in_memory,
    is_for_transformers,
    mean_loss,
    second_voice,
    transformers_voice,
)
from pretrace.convert.plan import Plan
from pretrace.convert.probe import Probe, ordinary, probe_of
from pretrace.convert.proof import FIXED, Proof
from pretrace.convert.source import Source, as_stored
from pretrace.dtypes import to_float
from pretrace.errors import PretraceError
from pretrace.findings import CheckNotRun, Finding
from pretrace.model.spec import ModelSpec
from pretrace.score.start import judge_start

_ROUNDING_KL = 0.05  # nats: bfloat16 and float16 cost trained models 1e-6 to 1e-3
_LAYOUT = "a layout is wrong: rotary order, fused heads, a transposed square, or padding"
_READING = "transformers takes the source's config.json for another model than pretrace does: report this"


def prove_logits(proof: Proof, plan: Plan, back: Source, folder: Path, probe: Probe) -> None:
    """The second half: both sides speak, each by two implementations where there are two."""
    probe = ordinary(probe, _magnitude(plan.wanted, probe.ids))
    proof.probe = f"{probe.ids.shape[0]} x {probe.ids.shape[1] - 1} tokens, {probe.about}"
    if not fits_in_memory(plan.spec):
        why = "two float32 copies of the model do not fit into the memory that is left"
        proof.not_run.append(CheckNotRun("logits of both sides", why))
        return
    rows = min(plan.source.model.spec.vocab_size, plan.spec.vocab_size)
    wanted = decoder_voice("source", weights_of(plan.wanted), plan.spec, probe.tokens)
    if not np.isfinite(wanted.logits[..., :rows]).all():
        _not_finite(proof)
        return
    stored = wanted
    if plan.request.dtype != "keep":  # what the source itself says, before its values were rounded
        stored = decoder_voice("source", weights_of(plan.source.view), plan.source.model.spec, probe.tokens)
        _rounding_cost(proof, distance(wanted, stored, rows))
    heard = _heard(proof, plan, back, folder, probe, wanted, stored)
    for voice, reference in heard:
        _judge(proof, distance(voice, reference, rows))
    _as_the_framework_runs_it(proof, plan, back, probe, wanted, rows)
    _losses(proof, plan, stored, heard[0][0], probe, rows)


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
        read = measured.side == "source" and measured.by.startswith("transformers ")
        proof.findings.append(Finding("logits", "error", what, measured.side, evidence, _READING if read else _LAYOUT))


def _as_the_framework_runs_it(proof: Proof, plan: Plan, back: Source, probe: Probe, wanted: Voice, rows: int) -> None:
    """Where the target's framework computes something else than the model: by how much, as a warning."""
    theirs = back.model.spec
    other = {
        k: getattr(theirs, k) for k in FIXED.get(plan.request.to, ()) if getattr(theirs, k) != getattr(plan.spec, k)
    }
    voice = second_voice("target", back.raw, plan.spec.model_copy(update=other), probe.tokens) if other else None
    if voice is None:
        return
    far = distance(voice, wanted, rows)
    said = ", ".join(f"{key} {value}" for key, value in other.items())
    what = (
        f"{plan.request.to} runs it with {said}: its logits are up to {far.max_ulp:.2g} ulp off, KL {far.kl:.2g} nats"
    )
    evidence = {"max_ulp": far.max_ulp, "kl": far.kl, **other}
    proof.findings.append(Finding("framework", "warning", what, "", evidence, "expect this much in its losses"))


def _rounding_cost(proof: Proof, cost: Distance) -> None:
    proof.rounding_kl = cost.kl
    if cost.kl > _ROUNDING_KL:
        what = f"the rounding moves the logits by KL {cost.kl:.2g} nats"
        proof.findings.append(Finding("rounding", "warning", what, "--dtype", {"kl": cost.kl}, "keep the stored dtype"))


def _heard(
    proof: Proof, plan: Plan, back: Source, folder: Path, probe: Probe, wanted: Voice, stored: Voice
) -> list[tuple[Voice, Voice]]:
    """Every voice, beside the one that it has to agree with: `wanted` for the target, `stored` for the source."""
    source, spec = plan.source, plan.spec
    # llm.c's rows beyond the vocabulary are cut again: the decoder has none.
    heard = [(decoder_voice("target", with_rows(weights_of(back.view), spec.vocab_size), spec, probe.tokens), wanted)]
    how = "second reading" + (", as the model is" if back.model.spec.activation != spec.activation else "")
    seen = _without_what_is_kept_beside(back, spec, probe)
    if seen is not None:
        proof.rounded_layout = distance(seen, wanted, min(source.model.spec.vocab_size, spec.vocab_size))
    heard += ((voice, seen or wanted) for voice in _second(proof, "target", back.raw, spec, probe, how))
    seen = _without_what_is_kept_beside(source, source.model.spec, probe)
    heard += ((voice, seen or stored) for voice in _second(proof, "source", source.raw, source.model.spec, probe))
    if plan.request.to == "hf" and spec.family != "native":
        heard += ((voice, wanted) for voice in _by_transformers(proof, "target", folder, probe))
    if source.told_by is None and is_for_transformers(source.path, source.raw):
        heard += ((voice, stored) for voice in _by_transformers(proof, "source", Path(source.path), probe))
    return heard


def _without_what_is_kept_beside(side: Source, spec: ModelSpec, probe: Probe) -> Voice | None:
    """pretrace's decoder on the values as the layout rounds them, which is what its framework reads; None if none are kept."""
    if not side.restored:
        return None
    return decoder_voice("", with_rows(as_stored(side), spec.vocab_size), spec, probe.tokens)


def _second(
    proof: Proof, side: str, raw: StateView, spec: ModelSpec, probe: Probe, how: str = "second reading"
) -> list[Voice]:
    voice = second_voice(side, raw, spec, probe.tokens, how)
    if voice is None:
        why = "its names belong to no framework that has one"
        proof.not_run.append(CheckNotRun(f"second reading of the {side}", why))
    return [voice] if voice is not None else []


def _by_transformers(proof: Proof, side: str, folder: Path, probe: Probe) -> list[Voice]:
    """What transformers makes of a folder. A target has to load; of a source that does not, it is said that nothing was asked."""
    try:
        return [transformers_voice(side, folder, probe.tokens)]
    except ImportError:
        proof.not_run.append(CheckNotRun(f"logits of the {side} by transformers", "it is not installed"))
    except PretraceError as error:
        if side == "target":
            proof.findings.append(Finding("transformers", "error", error.what, "", {}, error.mend))
        else:
            proof.not_run.append(CheckNotRun(f"logits of the {side} by transformers", error.what))
    return []


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
