"""What another window would have given, from log-likelihoods that were scored once.

A token's log-likelihood depends on the text through how many tokens stand before it in its window (`seen`). Under another
cut, tokens with the same `seen` had the very same inputs: their log-likelihood is known exactly. For the others it is
estimated: nats(seen) is fitted as a curve, piecewise linear in log2(seen), common to all windows, with a level for
each window (a hard paragraph is hard at any length), and the token's own value is moved along the curve. The interval comes
from a bootstrap over windows. Nothing is said of windows longer than those scored, nor of text that was never seen alone.

Axes: N tokens of a document, W windows, K knots of the curve but the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretrace.errors import PretraceError
from pretrace.evaluate.documents import Floats, Ints, RollingDocument
from pretrace.evaluate.intervals import LEVEL, SEED, draws

PRIOR = 5.0  # other tokens of an id that the common mean counts as
FEWEST_TOKENS = 8  # tokens near a knot, below which the curve is not known there
CURVE_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Cut:
    """How a text becomes windows: at most `max_length` inputs, each later window scoring `stride` new tokens.

    `stride` None: disjoint windows as lm-evaluation-harness cuts them: each begins with the last token of the one before, and
    the last one of a text is filled up with context. `joined`: one stream of all
    documents; what stands before a document in its window is another text.
    """

    max_length: int
    stride: int | None = None
    joined: bool = False

    @property
    def words(self) -> str:
        """The cut in a few words."""
        how = "disjoint windows" if self.stride is None else f"rolling windows, stride {self.stride:,},"
        return f"{how} of {self.max_length:,}" + (", documents joined" if self.joined else "")


def seen_under(n_tokens: int, cut: Cut, start: int = 0) -> Ints:
    """How many inputs each of `n_tokens` is predicted from, a begin token before the stream counted; int64 [N].

    `start`: tokens of the stream before the first of these.

    >>> seen_under(7, Cut(3)).tolist(), seen_under(7, Cut(4, stride=2)).tolist()
    ([1, 2, 3, 1, 2, 3, 3], [1, 2, 3, 4, 3, 4, 4])
    """
    t = np.arange(start, start + n_tokens, dtype=np.int64)
    stride = cut.stride or cut.max_length
    whole = cut.max_length + (t - cut.max_length) // stride * stride + stride
    stop = np.minimum(whole, start + n_tokens) if not cut.joined else whole
    return np.where(t < cut.max_length, t + 1, t - np.maximum(0, stop - cut.max_length - 1))


@dataclass(frozen=True, slots=True)
class Curve:
    """Nats as a function of `seen`, less its value at the longest: `effect` float64 [K + 1] at `knots`, the last one 0.

    `drawn` float64 [B, K + 1]: the same under each resample. `support` [K + 1]: tokens near each knot.
    """

    knots: Ints
    effect: Floats
    drawn: Floats
    support: Floats

    def at(self, seen: int) -> tuple[float, float, float]:
        """The effect and its 95% interval."""
        weights = hats(np.array([seen], dtype=np.int64), self.knots)[0]
        low, high = np.quantile(self.drawn @ weights, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(self.effect @ weights), float(low), float(high)


def knots_to(longest: int) -> Ints:
    """1, 2, 4, ... and the longest.

    >>> knots_to(12).tolist()
    [1, 2, 4, 8, 12]
    """
    powers = [1 << k for k in range(longest.bit_length()) if 1 << k < longest]
    return np.array([*powers, longest], dtype=np.int64)


def hats(seen: Ints, knots: Ints) -> Floats:
    """Weights of the knots for each token, linear in log2(seen); float64 [N, K + 1], rows sum to 1."""
    place = np.interp(np.log2(seen), np.log2(knots), np.arange(len(knots)))
    below = np.minimum(place.astype(np.int64), max(len(knots) - 2, 0))
    out = np.zeros((len(seen), len(knots)))
    rows = np.arange(len(seen))
    out[rows, below] = 1 - (place - below)
    if len(knots) > 1:
        out[rows, below + 1] = place - below
    return out


def fit(documents: Sequence[RollingDocument]) -> Curve:
    """The curve of documents that were scored token by token.

    The first window of a document is left out where there are later ones: titles stand there, and they are hard. What
    makes a token hard in itself is taken off first (the mean of the other tokens of its id, drawn to the common mean).

    Raises
    ------
    PretraceError
        If a document has no single tokens.
    """
    scored = [(_nats(d), _seen(d)) for d in documents]
    knots = knots_to(max(int(seen.max()) for _, seen in scored))
    rest = _less_hardness(documents, [nats for nats, _ in scored])
    later = [_after_first_window(nats, seen) for nats, (_, seen) in zip(rest, scored, strict=True)]
    later = [pair for pair in later if len(pair[0])] or list(zip(rest, (seen for _, seen in scored), strict=True))
    parts = [_equations(nats, seen, knots) for nats, seen in later]
    left, right = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    counts = np.concatenate(list(draws(len(left), CURVE_RESAMPLES, SEED)))
    drawn = _solve(np.tensordot(counts, left, 1), counts @ right)
    effect = _solve(left.sum(0)[None], right.sum(0)[None])[0]
    support = np.sum([hats(seen, knots).sum(0) for _, seen in later], axis=0)
    return Curve(knots, effect, drawn, support)


def _after_first_window(nats: Floats, seen: Ints) -> tuple[Floats, Ints]:
    later = np.flatnonzero(seen[1:] <= seen[:-1])
    start = int(later[0]) + 1 if len(later) else len(seen)
    return nats[start:], seen[start:]


def _less_hardness(documents: Sequence[RollingDocument], nats: Sequence[Floats]) -> list[Floats]:
    """Nats less what the other tokens of the same id cost on the mean; as they are where ids are not known."""
    if any(d.ids is None for d in documents):
        return list(nats)
    ids, kinds = np.unique(np.concatenate([d.ids for d in documents if d.ids is not None]), return_inverse=True)
    flat = np.concatenate(nats)
    number, total = np.bincount(kinds, minlength=len(ids)), np.bincount(kinds, flat, minlength=len(ids))
    # Others of the id only: with its own value in the mean, a rare token would explain itself.
    hardness = (total[kinds] - flat + PRIOR * flat.mean()) / (number[kinds] - 1 + PRIOR)
    return np.split(flat - hardness, np.cumsum([len(part) for part in nats])[:-1])


def _nats(document: RollingDocument) -> Floats:
    if document.tokens is None or document.seen is None:
        raise PretraceError(
            "windows of other lengths need the log-likelihood of every token",
            f"document {document.doc_id}",
            "score with pretrace evaluate: the harness's samples hold only sums",
        )
    return -document.tokens


def _seen(document: RollingDocument) -> Ints:
    _nats(document)
    assert document.seen is not None
    # A text without a begin token has nothing before its first token: counted as one input, at the curve's first knot.
    return np.maximum(document.seen, 1)


def _equations(nats: Floats, seen: Ints, knots: Ints) -> tuple[Floats, Floats]:
    """The normal equations of each window with its level swept out: [W, K, K] and [W, K]."""
    weights = hats(seen, knots)[:, :-1]
    starts = np.flatnonzero(np.append(True, seen[1:] <= seen[:-1]))
    size = np.diff(np.append(starts, len(seen))).astype(np.float64)
    sums = np.add.reduceat(weights, starts)
    total = np.add.reduceat(nats, starts)
    left = np.add.reduceat(weights[:, :, None] * weights[:, None, :], starts)
    right = np.add.reduceat(weights * nats[:, None], starts)
    left -= sums[:, :, None] * sums[:, None, :] / size[:, None, None]
    right -= sums * (total / size)[:, None]
    return left, right


def _solve(left: Floats, right: Floats) -> Floats:
    """The effects with a zero for the last knot; [B, K, K], [B, K] -> [B, K + 1]."""
    k = left.shape[-1]
    scale = np.trace(left, axis1=1, axis2=2)[:, None, None] / max(k, 1)
    ridge = np.maximum(scale, 1.0) * 1e-9 * np.eye(k)
    found = np.linalg.solve(left + ridge, right[..., None])[..., 0]
    return np.concatenate([found, np.zeros((len(found), 1))], axis=1)


@dataclass(frozen=True, slots=True)
class Derived:
    """Losses of the documents under another cut: `nats` [n], `drawn` [B, n] under each resample of the curve.

    `exact`: the share of tokens whose inputs are the same, so that their value is known and not estimated.
    """

    nats: Floats
    drawn: Floats
    exact: float


def derive(documents: Sequence[RollingDocument], cut: Cut, curve: Curve, kept: Sequence[slice]) -> Derived | None:
    """The losses under `cut` of the tokens `kept` of each document; None where the curve is not known.

    Of a joined stream, what stands before a document counts as no context (another text says little about it).
    """
    if cut.max_length > int(curve.knots[-1]):
        return None
    moves, nats, same, start, needed = [], [], 0, 0, np.zeros(len(curve.knots))
    for document, part in zip(documents, kept, strict=True):
        seen = _seen(document)
        new = seen_under(len(seen), cut, start if cut.joined else 0)
        own = np.minimum(new, 1 + np.arange(len(seen)))
        start += len(seen)
        weights = (hats(own, curve.knots) - hats(seen, curve.knots))[part]
        equal = own == seen if not cut.joined else (own == seen) & (own <= np.arange(len(seen)))
        same += int(equal[part].sum())
        needed += np.abs(weights).sum(0)
        moves.append(weights.sum(0))
        nats.append(float(_nats(document)[part].sum()))
    if np.any(curve.support[needed > 1] < FEWEST_TOKENS):
        return None
    total = sum(part.stop - part.start for part in kept)
    move = np.array(moves)
    base = np.array(nats)
    return Derived(base + move @ curve.effect, base[None] + curve.drawn @ move.T, same / max(total, 1))
