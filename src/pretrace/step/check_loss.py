"""Names the loss denominator of a training step from the gradients that it leaves. No torch here.

Four sequences with 1, 100, 7 and 30 labels go through the step, alone and together, at several topologies; the largest reads
some of them twice. The gradient of a mix is a sum over its sequences, G = sum_s a_s u_s, where u_s is the gradient that the step
leaves for sequence s alone. Every rule has its own a_s:

    lengths 1 and 100, two micro-steps      weight of a label in the short and in the long one
    global_tokens                           1/101   1/101
    micro_mean                              1/2     1/200

so fitting the measured a_s names the rule, whatever the model is. `step.check_loss_run` measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrace.step.denominators import Counts, weigh
from pretrace.step.loss_spec import DENOMINATORS, Denominator, LossSpec
from pretrace.topology import Topology

LENGTHS = (1, 100, 7, 30)  # labels of the four sequences
PADDED = 104  # positions of every sequence
PADDED_SHORT = 52  # the same for one sequence that is measured twice: only `positions` tells the two apart
SHORT = 2  # the sequence that is measured at both paddings (7 labels)
TOLERANCE = 0.03  # relative, of each coefficient; bf16 gradients stay well below, the rules are 10% apart and more

TOPOLOGIES = tuple(
    Topology(world_size=w, grad_accum_steps=k, micro_batch=b)
    for w, k, b in ((1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (2, 4, 1))
)
# The sequence at each position of an update. Eight positions repeat some, so that both ranks of 2 x 4 hold other labels.
SEQUENCES = (0, 1, 2, 3, 0, 3, 1, 1)
Count = Literal["after_shift", "before_shift"]
Factor = Literal["none", "gas", "ranks", "gas x ranks", "1/gas", "1/ranks", "1/gas x ranks"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step left: for each topology the coefficients of the four single gradients.

    unexplained : share of the mixes' gradients that no combination of single gradients gives (dropout, other data, a step
        that looks at more than its micro-batches).
    stretch : norm of the gradient of one sequence padded to PADDED_SHORT over that padded to PADDED.
    """

    coefficients: Mapping[Topology, tuple[float, ...]]
    unexplained: float
    stretch: float


@dataclass(frozen=True, slots=True)
class Row:
    """One topology: the weight of one label in each sequence, as measured and under the named rule."""

    world_size: int
    grad_accum_steps: int
    micro_batch: int
    measured: tuple[float, ...]
    expected: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """The rule that fits best, and how well."""

    outcome: Literal["named", "wrong-factor", "unknown"]
    denominator: Denominator
    count: Count
    factor: Factor  # what the whole gradient is multiplied by beyond the rule: a division forgotten, or made twice
    worst: float  # largest relative difference of a coefficient
    unexplained: float
    rows: tuple[Row, ...]
    sentence: str


def expected(denominator: Denominator, count: Count, topology: Topology) -> NDArray[np.float64]:
    """[4] weight of one label in each sequence in an update of this topology, the mean over the places of the sequence.

    >>> one = Topology(world_size=1, grad_accum_steps=4, micro_batch=1)
    >>> [round(1 / w) for w in expected("global_tokens", "after_shift", one)]
    [138, 138, 138, 138]
    >>> [round(1 / w) for w in expected("micro_mean", "after_shift", one)]
    [4, 400, 28, 120]
    """
    read = np.array(SEQUENCES[: topology.global_batch])
    weights = _label_weights(denominator, count, topology, np.array(LENGTHS)[read], PADDED)
    return np.bincount(read, weights) / np.bincount(read)


def places(topology: Topology) -> NDArray[np.int64]:
    """[4] how often each sequence is read in an update of this topology."""
    return np.bincount(SEQUENCES[: topology.global_batch])


def _label_weights(
    denominator: Denominator, count: Count, topology: Topology, lengths: NDArray[np.int64], padded: int
) -> NDArray[np.float64]:
    shape = (topology.world_size, topology.grad_accum_steps, topology.micro_batch)
    # Megatron's placement: micro-step k of rank r reads block k * world_size + r.
    placed = lengths.reshape(shape[1], shape[0], shape[2]).transpose(1, 0, 2)
    counted = placed + (1 if count == "before_shift" else 0)
    spec = LossSpec(denominator=denominator, count=count, divide="loss", logits_dtype="float32", z_loss=0.0,
                    z_loss_on="counted")  # fmt: skip
    token = weigh(spec, Counts(placed, counted, padded * lengths.size), mean=True).token / shape[0]
    return token.transpose(1, 0, 2).reshape(-1).astype(np.float64)


def _alone(denominator: Denominator, count: Count) -> NDArray[np.float64]:
    one = Topology(world_size=1, grad_accum_steps=1, micro_batch=1)
    return np.array([_label_weights(denominator, count, one, np.array([n]), PADDED)[0] for n in LENGTHS])


def coefficients(denominator: Denominator, count: Count, topology: Topology) -> NDArray[np.float64]:
    """[4] a_s under a rule: the weight of a label in the mix, over all places, over its weight when the sequence is alone."""
    return expected(denominator, count, topology) * places(topology) / _alone(denominator, count)


def name(measured: Measured) -> Naming:
    """The rule that explains all topologies best."""
    if silent := _silent_rank(measured):
        return replace(_fit(measured, "micro_mean", "after_shift", "none"), outcome="unknown", sentence=silent)
    fits = [_fit(measured, d, c, f) for d in DENOMINATORS for c in _counts(d) for f in _FACTORS]
    best = min(fits, key=lambda fit: (round(fit.worst, 4), _FACTORS.index(fit.factor)))
    return best


def _silent_rank(measured: Measured) -> str:
    """karpathy/build-nanogpt#30: gradients were not exchanged, each rank steps with its own."""
    for topology, found in measured.coefficients.items():
        steps = range(topology.grad_accum_steps)
        read = {SEQUENCES[p] for k in steps for p in topology.positions(0, k, 0)}
        others = [s for s in range(len(LENGTHS)) if s not in read]
        if others and np.abs(np.array(found)[others]).max() < TOLERANCE * np.abs(found).max():
            return "the ranks do not exchange their gradients: rank 0 steps with its own alone"
    return ""


_FACTORS: tuple[Factor, ...] = ("none", "gas", "ranks", "gas x ranks", "1/gas", "1/ranks", "1/gas x ranks")


def _counts(denominator: Denominator) -> Sequence[Count]:
    # Only rules that divide by a number of labels care which labels are counted.
    return ("after_shift",) if denominator in ("positions", "sequence_mean") else ("after_shift", "before_shift")


def _factor(factor: Factor, topology: Topology) -> float:
    size = (topology.grad_accum_steps if "gas" in factor else 1) * (topology.world_size if "ranks" in factor else 1)
    return 1 / size if factor.startswith("1/") else float(size)


def _fit(measured: Measured, denominator: Denominator, count: Count, factor: Factor) -> Naming:
    rows, worst = [], _stretch_error(measured.stretch, denominator)
    for topology, found in measured.coefficients.items():
        a = np.array(found)
        want = coefficients(denominator, count, topology) * _factor(factor, topology)
        worst = max(worst, float(np.max(np.abs(a - want) / want)))
        alone = _alone(denominator, count) / places(topology)
        rows.append(Row(topology.world_size, topology.grad_accum_steps, topology.micro_batch,
                        tuple(map(float, a * alone)), tuple(map(float, want * alone))))  # fmt: skip
    whole = max(worst, measured.unexplained)
    outcome: Literal["named", "wrong-factor", "unknown"] = (
        "unknown" if not whole <= TOLERANCE else "named" if factor == "none" else "wrong-factor"
    )
    return Naming(outcome, denominator, count, factor, worst, measured.unexplained, tuple(rows),
                  _sentence(outcome, denominator, count, factor, measured.unexplained))  # fmt: skip


def _stretch_error(stretch: float, denominator: Denominator) -> float:
    want = PADDED / PADDED_SHORT if denominator == "positions" else 1.0
    return abs(stretch - want) / want


_MEANS: dict[Denominator, str] = {
    "global_tokens": "every counted label of the update weighs the same, whatever gas and ranks are",
    "micro_mean": "mean over each micro-batch, then over gas and ranks: a label in a sparse micro-batch weighs more, and "
    "changing gas or ranks changes the result",
    "sequence_mean": "mean within each sequence, then over sequences: every sequence weighs the same",
    "rank_step_tokens": "sum over a rank's step by its labels, then mean over ranks: labels of a rank with few weigh more, "
    "gas does not matter, ranks do",
    "positions": "sum over all positions, counted or not: padding makes the gradient smaller",
}


def _sentence(outcome: str, denominator: Denominator, count: Count, factor: Factor, unexplained: float) -> str:
    if unexplained > TOLERANCE:
        return (f"cannot tell: {unexplained:.0%} of the gradients is no sum over the sequences "
                "(dropout on, another initialisation each time, or the step keeps something between calls)")  # fmt: skip
    if outcome == "unknown":
        return f"none of the known rules fits; the nearest is {denominator}"
    counted = ", counting one label too many in each sequence (before the shift)" if count == "before_shift" else ""
    if outcome == "wrong-factor":
        wrong = factor.removeprefix("1/")
        size, why = ("large", "a division is missing") if wrong == factor else ("small", "it is divided by that twice")
        return f"{denominator}{counted}, but the gradient is {wrong} times too {size}: {why}"
    return f"{denominator}: {_MEANS[denominator]}{counted}"
