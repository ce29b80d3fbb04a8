"""One hypothesis against its two controls: other orders of the same data (decoys) and benign reruns (positives).

The decoys say what an unrelated order scores, the benign reruns what the true one scores. A hypothesis is called by where the
reference lies between them; where the two overlap nothing could have been seen, and it is called blind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

import pretrace.provenance.centred as centred
from pretrace.errors import PretraceError
from pretrace.provenance.gram import Gram, Weights
from pretrace.provenance.rules import Rules
from pretrace.provenance.tails import rank_p, t_upper_tail

Statistic = Callable[[Gram, Weights, Weights, Weights], float]  # of reference, target and mean
Status = Literal["reproduced", "partial", "absent", "blind", "unclear"]


@dataclass(frozen=True, slots=True)
class Runs:
    """Which rows of the products belong to a hypothesis.

    `own[0]` and all decoys are run under one and the same setting: only then is the rank among them exact. The other `own` are
    benign reruns.
    """

    own: tuple[str, ...]
    decoys: tuple[str, ...]  # other orders of the same data, never a live rival


@dataclass(frozen=True, slots=True)
class Duel:
    """The reference between two hypotheses: `share` is 1 at the claim and 0 at the rival."""

    rival: str
    share: float  # NaN where the two predict the same
    sd: float  # scatter of the benign reruns of both, each left out in turn
    p_claim: float  # t test against the half-way point, for the claim
    p_rival: float

    def won_by_claim(self, rules: Rules) -> bool:
        """Whether the reference is at the claim."""
        return self.p_claim < rules.duel_alpha and abs(self.share - 1) < rules.share_within

    def won_by_rival(self, rules: Rules) -> bool:
        """Whether the reference is at the rival."""
        return self.p_rival < rules.duel_alpha and abs(self.share) < rules.share_within


@dataclass(frozen=True, slots=True)
class Judged:
    """A hypothesis with everything its status rests on. P.Cos, U.Cos and L2 only describe."""

    name: str
    status: Status
    centred: float  # centred score of the mean benign rerun
    share: float
    p_exact: float  # rank of the base rerun among the decoys
    n_decoys: int
    p_tail: float  # t tail beyond the decoys: extrapolated
    p_same: float  # whether the reference could be one more benign rerun (heuristic)
    p_cos: float
    one_minus_p_cos: float  # what is printed: the cosine itself rounds to 1
    u_cos: float
    l2: float
    threshold: float  # what a score must pass to stand clear of the decoys
    decoy_scores: tuple[float, ...]
    positive_scores: tuple[float, ...]  # each benign rerun in the place of the reference
    duels: dict[str, Duel] = field(default_factory=dict)

    @property
    def times_benign(self) -> float:
        """The part of the centred update that the hypothesis leaves, as a multiple of the largest that a benign rerun leaves."""
        left = [math.sqrt(max(1 - score**2, 0.0)) for score in (self.centred, *self.positive_scores)]
        return left[0] / max(left[1:]) if max(left[1:]) > 0 else math.inf


def judge_all(
    gram: Gram, reference: str, claim: str, hypotheses: Mapping[str, Runs], rules: Rules, *, approximate: bool = False
) -> dict[str, Judged]:
    """Every hypothesis judged; the claim's carries a duel with each rival.

    `approximate` says that the predictions carry an error of their own (burnt-in moments in the place of the optimizer's): then
    two hypotheses that lie nearer to each other than the reference lies to either have no duel.

    Raises
    ------
    PretraceError
        Where a run of one hypothesis is a decoy of another: if that rival is true, its score of 1 widens the scatter of
        the decoys until nothing stands clear of them.
    """
    for name, runs in hypotheses.items():
        for other, rival in hypotheses.items():
            if both := set(runs.decoys) & set(rival.own):
                raise PretraceError(
                    f"{sorted(both)[0]} is a rerun of {other!r} and a decoy of {name!r}",
                    f"hypothesis {name}",
                    "give the decoys other seeds than any hypothesis has",
                )
    judged = {name: judge(gram, name, reference, runs, rules) for name, runs in hypotheses.items()}
    rivals = [name for name in hypotheses if name != claim]
    duels = {name: duel(gram, reference, hypotheses[claim], name, hypotheses[name]) for name in rivals}
    if approximate:
        near = [name for name in rivals if _too_near(gram, reference, hypotheses[claim], hypotheses[name])]
        duels |= {name: Duel(name, math.nan, math.nan, 1.0, 1.0) for name in near}
    return {**judged, claim: replace(judged[claim], duels=duels)}


def judge(gram: Gram, name: str, reference: str, runs: Runs, rules: Rules) -> Judged:
    """Places `reference` between the decoys and the benign reruns of one hypothesis.

    Raises
    ------
    PretraceError
        With fewer decoys or benign reruns than the rules ask for.
    """
    _enough(name, runs, rules)
    ref, target, mean = gram.one(reference), gram.mean(runs.own), gram.mean(runs.decoys)
    base = _rank_score(gram, ref, runs)
    decoys = tuple(_decoy_score(gram, ref, runs, decoy) for decoy in runs.decoys)
    positives = tuple(_positive(gram, runs, i, centred.score) for i in range(len(runs.own)))
    apart = centred.one_minus_p_cos(gram, ref, target)
    found = Judged(
        name=name,
        status="unclear",
        centred=centred.score(gram, ref, target, mean),
        share=centred.share(gram, ref, target, mean),
        p_exact=rank_p(base, decoys),
        n_decoys=len(decoys),
        p_tail=_p_tail(base, decoys),
        p_same=_p_same(gram, ref, runs),
        p_cos=1 - apart,
        one_minus_p_cos=apart,
        u_cos=gram.cosine(ref, target),
        l2=gram.distance(ref, target),
        threshold=_clear(decoys, rules.clear_sds),
        decoy_scores=decoys,
        positive_scores=positives,
    )
    return replace(found, status=_status(found, rules))


def duel(gram: Gram, reference: str, claim: Runs, rival_name: str, rival: Runs) -> Duel:
    """The reference between two hypotheses, against the scatter of the benign reruns of both."""
    a, b = gram.mean(claim.own), gram.mean(rival.own)
    found = centred.duel(gram, gram.one(reference), a, b)
    misses = [centred.duel(gram, gram.one(r), _without(gram, claim.own, r), b) - 1 for r in claim.own]
    misses += [centred.duel(gram, gram.one(r), a, _without(gram, rival.own, r)) for r in rival.own]
    sd = math.sqrt(float(np.mean(np.square(misses))))
    if math.isnan(found) or math.isnan(sd):
        return Duel(rival_name, math.nan, math.nan, 1.0, 1.0)
    dof = len(claim.own) + len(rival.own) - 2
    t = (found - 0.5) / (1.1 * sd + 1e-12)  # 1.1: the left-out means are themselves of few reruns
    return Duel(rival_name, found, sd, t_upper_tail(t, dof), t_upper_tail(-t, dof))


def _too_near(gram: Gram, reference: str, claim: Runs, rival: Runs) -> bool:
    a, b = gram.mean(claim.own), gram.mean(rival.own)
    residual = min(gram.distance(gram.one(reference), each) for each in (a, b))
    return gram.distance(a, b) < residual


def _enough(name: str, runs: Runs, rules: Rules) -> None:
    if len(runs.decoys) < rules.min_decoys:
        raise PretraceError(
            f"{len(runs.decoys)} decoy orders cannot reach p <= {rules.alpha}: the smallest p is "
            f"{1 / (len(runs.decoys) + 1):.3f}",
            f"hypothesis {name}",
            f"run at least {rules.min_decoys} decoys",
        )
    if len(runs.own) < rules.min_positives:
        raise PretraceError(
            f"{len(runs.own)} benign reruns say too little about the noise",
            f"hypothesis {name}",
            f"run at least {rules.min_positives} benign settings",
        )


def _status(found: Judged, rules: Rules) -> Status:
    positive = float(np.mean(found.positive_scores))
    if min(found.positive_scores) <= found.threshold or positive <= rules.min_positive:
        return "blind"
    if found.p_exact <= rules.alpha and found.centred > found.threshold:
        # Where data are mixed, score and share fall together; a score near 1 with another share is a scaled update.
        near = abs(found.share - 1) < rules.share_within
        wanted = rules.reproduced_of_positive if near else rules.reproduced_alone
        return "reproduced" if found.centred >= wanted * positive else "partial"
    if found.p_exact > rules.alpha and found.centred < rules.absent_of_positive * positive:
        return "absent"
    return "unclear"


def _clear(decoys: Sequence[float], sds: float) -> float:
    return float(np.mean(decoys) + sds * np.std(decoys, ddof=1))


def _rank_score(gram: Gram, ref: Weights, runs: Runs) -> float:
    return centred.score(gram, ref, gram.one(runs.own[0]), gram.mean(runs.decoys))


def _decoy_score(gram: Gram, ref: Weights, runs: Runs, decoy: str) -> float:
    # Each order is centred on the mean of all the others, the hypothesis included: the same function of every order, so that
    # under the null (the reference has nothing to do with any of them) the ranks are exactly uniform.
    others = [runs.own[0], *(d for d in runs.decoys if d != decoy)]
    return centred.score(gram, ref, gram.one(decoy), gram.mean(others))


def _positive(gram: Gram, runs: Runs, i: int, statistic: Statistic) -> float:
    """A benign rerun in the place of the reference, against the mean of the others."""
    target = _without(gram, runs.own, runs.own[i])
    return statistic(gram, gram.one(runs.own[i]), target, gram.mean(runs.decoys))


def _without(gram: Gram, names: Sequence[str], left_out: str) -> Weights:
    return gram.mean([name for name in names if name != left_out])


def _p_tail(score: float, decoys: Sequence[float]) -> float:
    n = len(decoys)
    sd = float(np.std(decoys, ddof=1)) * math.sqrt(1 + 1 / n)
    return t_upper_tail((score - float(np.mean(decoys))) / sd, n - 1) if sd > 0 else math.nan


def _p_same(gram: Gram, ref: Weights, runs: Runs) -> float:
    """Whether the reference scores and scales as one more benign rerun would: twice the smaller of two t tests."""
    target, mean = gram.mean(runs.own), gram.mean(runs.decoys)
    scores = [_positive(gram, runs, i, centred.score) for i in range(len(runs.own))]
    shares = [_positive(gram, runs, i, centred.share) for i in range(len(runs.own))]
    by_score = _t_outside(_spread(centred.score(gram, ref, target, mean)), [_spread(score) for score in scores])
    by_share = _t_outside(centred.share(gram, ref, target, mean), shares)
    # One-sided by score (a reference that fits better than the reruns do is no worse than one of them), two-sided by share.
    below = t_upper_tail(-by_score, len(scores) - 1) if by_score < 0 else 0.5
    return min(1.0, 2 * min(below, 2 * t_upper_tail(abs(by_share), len(shares) - 1)))


def _spread(score: float) -> float:
    return math.atanh(min(max(score, -0.999999), 0.999999))


def _t_outside(value: float, of: Sequence[float]) -> float:
    # A floor under the scatter: reruns that differ in nothing but a thousandth say little about the next one.
    sd = max(float(np.std(of, ddof=1)), 1e-3) * math.sqrt(1 + 1 / len(of))
    return (value - float(np.mean(of))) / sd
