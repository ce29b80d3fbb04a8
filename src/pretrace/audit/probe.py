"""The loss on a probe text: the check that sees a wrong layout without a reference. The only one that needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrace.audit.subject import Said, Subject
from pretrace.batch import IGNORE_INDEX, Batch
from pretrace.checkpoint.names import canonical
from pretrace.errors import PretraceError, naming
from pretrace.findings import Finding

CHECK = "loss on a probe text"
TOLERANCE = 0.02  # relative: another precision or attention kernel moves a loss far less
LOGITS = 0.05  # of the spread of the expected logits; float32 kernels differ by 1e-5 of it
WIDTH = 257  # ids in a window of a text


@dataclass(frozen=True, slots=True)
class Probe:
    """Tokens to score, and what is known of the answer.

    `tokens`: ids int64 [B, T + 1]; `expected`: mean loss in nats, NaN if not known; `first`: index of the first counted target;
    `logits`: float32 [B, V] of the last position, or None.
    """

    tokens: NDArray[np.int64]
    expected: float = math.nan
    first: int = 1
    logits: NDArray[np.float32] | None = None


def read_probe(path: str | Path, checkpoint: str) -> Probe:
    """A probe from a file.

    `.npz` with `ids` and any of `loss` (with `first`), `logits_last`; `.npy` with ids; else a text for the tokenizer.json of
    the checkpoint.

    Raises
    ------
    PretraceError
        If the file cannot be read, or a text has no tokenizer beside the checkpoint.
    """
    path = Path(path)
    with naming(path, "reading"):
        if path.suffix in (".npz", ".npy"):
            return _read_ids(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    if not (folder / "tokenizer.json").is_file():
        raise PretraceError(
            "a probe text needs the model's tokenizer",
            str(folder / "tokenizer.json"),
            "put tokenizer.json beside the checkpoint, or give token ids (.npy)",
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Probe(_windows(np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)))


def _read_ids(path: Path) -> Probe:
    try:
        data = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return Probe(_windows(np.asarray(data, dtype=np.int64)))
        tokens = _windows(np.asarray(data["ids"], dtype=np.int64))
        logits = np.asarray(data["logits_last"], dtype=np.float32) if "logits_last" in data else None
        # A loss can be compared only if it is known over which targets it was taken: all, or those from `first` on.
        known = "loss" in data and ("first" in data or logits is None)
        first = int(data["first"]) if "first" in data else 1
        return Probe(tokens, float(data["loss"]) if known else math.nan, first, logits)
    except (ValueError, KeyError, TypeError) as error:
        raise PretraceError(
            f"the probe cannot be read: {error}", str(path), "save with numpy: ids [B, T], loss"
        ) from None


def _windows(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids as [B, T]; a flat list becomes windows."""
    if ids.ndim == 2:
        return ids
    width = min(WIDTH, ids.size)
    if width < 2:
        raise PretraceError("the probe has fewer than two tokens", "", "give a longer text")
    return ids[: ids.size // width * width].reshape(-1, width)


def probe_findings(subject: Subject, probe: Probe, said: Said) -> None:
    """Adds what the loss says: not finite, not the expected one, worse than guessing."""
    if subject.spec is None or subject.canonical is None:
        said.skip(CHECK, "the model is of a family that pretrace does not run, or its layout does not fit")
        return
    try:
        loss, off = _score(subject, probe)
    except PretraceError as error:
        said.skip(CHECK, error.what)
        return
    guess = math.log(subject.spec.vocab_size)
    evidence = {"loss": loss, "guessing": guess, "expected": probe.expected, "logits_off": off}
    mend = "compare with a reference (--reference): a QKV, rotary, transpose or layer move keeps all statistics"
    said.add([_judge(loss, off, guess, probe, evidence, mend)])
    if math.isnan(probe.expected) and probe.logits is None:
        said.skip("loss on a probe text against an expected value", "none given: below guessing may still be too high")


def _judge(loss: float, off: float, guess: float, probe: Probe, evidence: dict[str, float], mend: str) -> Finding:
    what = ""
    if not math.isfinite(loss):
        what = "the loss on the probe text is not finite"
    elif off > LOGITS:
        what = f"the logits on the probe text are off by {off:.2g} of their spread (loss {loss:.4g} nats)"
    elif loss > probe.expected * (1 + TOLERANCE) + 1e-3:
        what = f"the loss on the probe text is {loss:.4g} nats, {probe.expected:.4g} were expected"
    elif loss > guess:
        what = f"the loss on the probe text is {loss:.4g} nats, worse than guessing ({guess:.3g})"
    if what:
        return Finding("verify-loss", "error", what, "", evidence, mend)
    agreed = ", the logits agree" if probe.logits is not None else ""
    return Finding("verify-loss", "info", f"the loss on the probe text is {loss:.4g} nats{agreed}", "", evidence)


def _score(subject: Subject, probe: Probe) -> tuple[float, float]:
    """The loss, and the largest error of the last logits in units of their spread (0 where none are expected)."""
    import torch

    from pretrace.score.likelihood import decoder_of, held_out_loss

    assert subject.spec is not None
    if probe.tokens.max() >= subject.spec.vocab_size or probe.tokens.min() < 0:
        raise PretraceError("the probe has ids outside the vocabulary", "", "tokenize it with the model's tokenizer")
    model = decoder_of(canonical(subject.view, subject.spec), subject.spec)
    labels = probe.tokens[:, 1:].copy()
    labels[:, : probe.first - 1] = IGNORE_INDEX
    loss = held_out_loss(model, [Batch(probe.tokens[:, :-1], labels)]).nats_per_token
    if probe.logits is None:
        return loss, 0.0
    with torch.no_grad():
        last = model(torch.from_numpy(probe.tokens))[:, -1].float().numpy()
    if last.shape != probe.logits.shape or not np.isfinite(last).all():
        return loss, math.inf
    return loss, float(np.abs(last - probe.logits).max() / probe.logits.std())
