"""From what was asked for to complete settings: what is not named is the model's or the harness's, and said to be."""

from __future__ import annotations

from dataclasses import dataclass

from pretrace.errors import PretraceError
from pretrace.evaluate.settings import Bos, Dtype, Settings, Through, Truncation
from pretrace.evaluate.subject import Subject
from pretrace.evaluate.text import TextCoder


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asked for; None where they left it to the model, the tokenizer or the harness."""

    max_length: int | None = None
    truncation: Truncation | None = None
    bos: Bos | None = None
    prefix: str | None = None  # an id, or the text of a token
    dtype: Dtype | None = None
    through: Through | None = None
    device: str = "cpu"
    limit: int | None = None
    fewshot: int | None = None
    batch_tokens: int | None = None
    threads: int = 1


# Where a value comes from that was left open.
_UNGIVEN = {
    "max_length": "the model's own", "truncation": "the harness's rule", "bos": "the harness's rule", "dtype": "not given",
    "through": "not given", "limit": "all rows", "fewshot": "as the task says", "batch_tokens": "not given",
}  # fmt: skip


_ABOVE = ": above what it was made for, where a figure says little (EleutherAI/lm-evaluation-harness#1642)"


def resolve(wanted: Wanted, subject: Subject, coder: TextCoder) -> tuple[Settings, dict[str, str]]:
    """The settings for one checkpoint, and of each value in words where it comes from.

    Raises
    ------
    PretraceError
        If a value is neither given nor known, or does not fit the model.
    """
    said = {name: words if getattr(wanted, name) is None else "given" for name, words in _UNGIVEN.items()}
    if wanted.max_length is not None and subject.own_length not in (None, wanted.max_length):
        above = wanted.max_length > (subject.own_length or 0)
        said["max_length"] = f"given; the model's own is {subject.own_length:,}" + (_ABOVE if above else "")
    if wanted.dtype is None and subject.stored != "float32":
        said["dtype"] = f"not given; stored as {subject.stored}, which the harness's dtype=auto would take"
    prefix, said["prefix"] = _prefix(wanted, subject, coder)
    if larger := _larger(subject, coder):
        said["tokenizer"] = larger
    settings = Settings(
        max_length=_max_length(wanted, subject), truncation=wanted.truncation or "left", bos=wanted.bos or "tokenizer",
        prefix=prefix, dtype=wanted.dtype or "float32", through=wanted.through or "decoder", device=wanted.device,
        limit=wanted.limit, fewshot=wanted.fewshot, batch_tokens=wanted.batch_tokens or _batch_tokens(wanted.device),
        threads=wanted.threads,
    )  # fmt: skip
    if settings.through == "decoder" and subject.spec is None:
        raise PretraceError(subject.why, subject.path, "read it with transformers: --through transformers")
    return settings, said


def _larger(subject: Subject, coder: TextCoder) -> str:
    """Words where the tokenizer has more entries than the model has rows: another model's, perhaps, though its ids may fit."""
    entries, rows = len(coder.impl.get_vocab()), None if subject.spec is None else subject.spec.vocab_size
    if rows is None or entries <= rows:
        return ""
    return f"it has {entries:,} entries, the model {rows:,} rows: is it the model's own?"


def _batch_tokens(device: str) -> int:
    # On a processor, activations of more tokens leave the caches; a GPU is filled by many.
    return 1024 if device == "cpu" else 65536


def _max_length(wanted: Wanted, subject: Subject) -> int:
    own = subject.own_length
    if wanted.max_length is None:
        if own is None:
            raise PretraceError("the configuration does not say how many positions the model has", subject.path,
                                "say it: --max-length N")  # fmt: skip
        return own
    learned = subject.spec is not None and subject.spec.position == "learned"
    if own is not None and wanted.max_length > own and learned:
        raise PretraceError(f"max_length {wanted.max_length:,}, and the model has {own:,} positions", subject.path,
                            f"ask for {own} or fewer: learned positions end there")  # fmt: skip
    return wanted.max_length


def _prefix(wanted: Wanted, subject: Subject, coder: TextCoder) -> tuple[int, str]:
    if wanted.prefix is None:
        if coder.prefix is None:
            raise PretraceError("the tokenizer names neither a begin-of-text nor an end-of-text token", coder.where,
                                "name the token before a text without context: --prefix-token ID")  # fmt: skip
        return coder.prefix, "the tokenizer's " + ("end-of-text" if coder.begin is None else "begin-of-text") + " token"
    found = int(wanted.prefix) if wanted.prefix.isdigit() else coder.impl.get_vocab().get(wanted.prefix)
    if found is None:  # transformers' own look-up would give the unknown token
        raise PretraceError(f"the tokenizer has no token {wanted.prefix!r}", coder.where, "give its id, or another")
    rows = None if subject.spec is None else subject.spec.vocab_size
    if rows is not None and found >= rows:
        what = f"the prefix token is {found:,}, and the model has {rows:,} rows"
        raise PretraceError(what, "--prefix-token", "give a token of the model")
    return int(found), "given"
