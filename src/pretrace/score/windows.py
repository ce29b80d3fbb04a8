"""How a long text becomes windows that a model can read: every token is scored exactly once.

Perplexity of one model on one text changes with this choice alone (EleutherAI/lm-evaluation-harness#2467): short windows
leave more tokens with little context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pretrace.errors import PretraceError


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, stop) go in; of their successors, those from `scored` to `stop` (positions in the text) are counted.

    The prediction of token i comes from the tokens start .. i - 1. `prefix` stands before the window where the text itself
    has no token to predict the first one from (a begin-of-text token); it is None elsewhere.
    """

    start: int
    stop: int
    scored: int
    prefix: int | None = None


def disjoint(n_tokens: int, max_length: int, *, prefix: int | None) -> Iterator[Window]:
    """Windows that do not overlap, each of at most `max_length` inputs.

    With a `prefix` every token is scored, the first one from the prefix; without, the first is not scored. Each later window
    starts with the last token of the one before as its only context (lm-evaluation-harness, rolling with context length 1).

    >>> [(w.start, w.stop, w.scored) for w in disjoint(10, 4, prefix=None)]
    [(0, 5, 1), (4, 9, 5), (8, 10, 9)]
    """
    first = 1 if prefix is None else 0
    for scored in range(first, n_tokens, max_length):
        stop = min(scored + max_length, n_tokens)
        yield Window(max(0, scored - 1), stop, scored, prefix if scored == 0 else None)


def rolling(n_tokens: int, max_length: int, *, stride: int, prefix: int | None) -> Iterator[Window]:
    """Windows of at most `max_length` inputs; each after the first scores `stride` new tokens (all once).

    >>> [(w.start, w.stop, w.scored) for w in rolling(10, 4, stride=2, prefix=None)]
    [(0, 5, 1), (2, 7, 5), (4, 9, 7), (5, 10, 9)]
    """
    if not 1 <= stride <= max_length:
        raise PretraceError(f"a stride of {stride} does not fit windows of {max_length}", "", "choose 1 to max_length")
    first = min(n_tokens, max_length + (1 if prefix is None else 0))
    done = first
    if n_tokens > (1 if prefix is None else 0):
        yield Window(0, first, 1 if prefix is None else 0, prefix)
    while done < n_tokens:
        stop = min(done + stride, n_tokens)
        yield Window(max(0, stop - max_length - 1), stop, done)
        done = stop


def inputs_and_labels(tokens: Sequence[int], window: Window, ignore: int) -> tuple[list[int], list[int]]:
    """The input ids and, of equal length, the labels of a window; labels that are not counted are `ignore`."""
    text = list(tokens[window.start : window.stop])
    if window.prefix is not None:
        text = [window.prefix, *text]
    offset = window.stop - len(text)  # position in the text of text[0]
    labels = [token if offset + i >= window.scored else ignore for i, token in enumerate(text)][1:]
    return text[:-1], labels
