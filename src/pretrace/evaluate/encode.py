"""Texts of a request as token requests, by lm-evaluation-harness's rules (0.4.13, `TemplateLM._encode_pair`, `HFLM`).

Trailing spaces of a context are scored with the continuation. Context and continuation are encoded as one text and cut at the
context's own length: where a token spans the join, the tokens scored are others than those of the continuation alone
(EleutherAI/lm-evaluation-harness#1053, #4055). The harness does so silently and stops at an empty continuation; here both
are written to the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pretrace.evaluate.rows import Fault
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.text import Encoded, TextCoder
from pretrace.score.requests import Request, window_request
from pretrace.score.windows import rolling


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in tokens: one part, or the windows of a text; none where a fault is fatal."""

    parts: tuple[Request, ...]
    tokens: tuple[int, ...]  # scored, over all parts
    starts: tuple[int, ...]  # index in the continuation's text of each token's first character; () if not known
    faults: tuple[Fault, ...] = ()


def encode_pairs(coder: TextCoder, pairs: Sequence[tuple[str, str]], settings: Settings) -> list[Asked]:
    """Contexts and continuations as requests."""
    split = [_move_spaces(context, continuation) for context, continuation in pairs]
    special = _special(settings)
    bare = coder.encode([continuation for _, continuation in split], False)
    contexts = coder.encode([context for context, _ in split], special)
    wholes = coder.encode([context + continuation for context, continuation in split], special)
    found = []
    for (given, wanted), (context, _), alone, head, whole in zip(pairs, split, bare, contexts, wholes, strict=True):
        # Places count in the continuation as it was given: spaces moved out of the context begin below 0.
        if not wanted.strip():
            found.append(Asked((), (), (), (Fault("empty-continuation", "only blanks" if wanted else ""),)))
        elif context:
            found.append(_joined(head, whole, len(given), settings))
        else:
            found.append(_without_context(alone, len(given), settings))
    return found


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _special(settings: Settings) -> bool | None:
    """What is asked of the tokenizer: its own rule, or nothing added (`always` adds the prefix here, not there)."""
    return None if settings.bos == "tokenizer" else False


def _without_context(alone: Encoded, shift: int, settings: Settings) -> Asked:
    """The continuation after the prefix token; after its own first token where that is the prefix (the harness's rule)."""
    ids, starts = alone.ids, alone.starts
    if ids[:1] == (settings.prefix,):
        return _fitted(ids[:1], ids[1:], starts[1:], shift, (), settings)
    return _fitted((settings.prefix,), ids, starts, shift, (), settings)


def _joined(head: Encoded, whole: Encoded, shift: int, settings: Settings) -> Asked:
    n = len(head.ids)
    faults = () if whole.ids[:n] == head.ids else (Fault("token-across-join", _spanning(head, whole)),)
    context = head.ids
    if not context or (settings.bos == "always" and context[0] != settings.prefix):
        context = (settings.prefix, *context)
    return _fitted(context, whole.ids[n:], whole.starts[n:], shift, faults, settings)


def _spanning(head: Encoded, whole: Encoded) -> str:
    same = next((i for i, (a, b) in enumerate(zip(head.ids, whole.ids)) if a != b), min(len(head.ids), len(whole.ids)))
    return f"the context alone ends in {list(head.ids[same:])[:4]}, the whole text goes on with {list(whole.ids[same:])[:4]}"


def _fitted(context: tuple[int, ...], scored: tuple[int, ...], starts: tuple[int, ...], shift: int,
            faults: tuple[Fault, ...], settings: Settings) -> Asked:  # fmt: skip
    """The request cut to max_length from the left, as the harness cuts it; or the fault that keeps it from being scored."""
    longest = settings.max_length
    if not scored:
        return Asked((), (), (), (*faults, Fault("empty-continuation")))
    if len(scored) > longest:
        words = f"{len(scored):,} tokens, max_length {longest:,}"
        return Asked((), (), (), (*faults, Fault("continuation-too-long", words)))
    # The last token is scored and never read, so that one token more than max_length fits.
    cut = max(0, len(context) + len(scored) - (longest + 1))
    if cut:
        words = f"{cut:,} of {len(context):,} tokens"
        if settings.truncation == "refuse":
            return Asked((), (), (), (*faults, Fault("context-too-long", f"{words} do not fit into {longest:,}")))
        faults = (*faults, Fault("context-cut", words))
    places = tuple(start - shift for start in starts)
    return Asked((Request(context[cut:], scored),), scored, places, faults)


def encode_texts(coder: TextCoder, texts: Sequence[str], settings: Settings) -> list[Asked]:
    """Whole texts as rolling windows of max_length: every token is scored once, each window but the last begins afresh."""
    return [_windows(encoded, settings) for encoded in coder.encode(texts, _special(settings))]


def _windows(text: Encoded, settings: Settings) -> Asked:
    if not text.ids:
        return Asked((), (), (), (Fault("empty-continuation"),))
    cut = rolling(len(text.ids), settings.max_length, stride=settings.max_length, prefix=settings.prefix)
    return Asked(tuple(window_request(text.ids, window) for window in cut), text.ids, text.starts)
