"""The statistics of a verdict as arithmetic on the inner products (`gram.py`): centred score, share, duel.

`plain.py` defines the three on vectors. Everything here takes combinations of updates (weights) in the place of vectors.
"""

from __future__ import annotations

import math

import numpy as np

from pretrace.provenance.gram import START, Gram, Weights


def centred_inner(gram: Gram, a: Weights, b: Weights, mean: Weights) -> float:
    """Inner product of a and b after centring on `mean` and removing what is left along it."""
    a, b = a - mean, b - mean
    length = gram.inner(mean, mean)
    along = gram.inner(a, mean) * gram.inner(b, mean) / length if length > 0 else 0.0
    return gram.inner(a, b) - along


def score(gram: Gram, reference: Weights, target: Weights, mean: Weights) -> float:
    """Cosine of the centred updates; 0 where centring leaves nothing of one of them."""
    lengths = centred_inner(gram, reference, reference, mean) * centred_inner(gram, target, target, mean)
    return centred_inner(gram, reference, target, mean) / math.sqrt(lengths) if lengths > 0 else 0.0


def share(gram: Gram, reference: Weights, target: Weights, mean: Weights) -> float:
    """How much of the target's order-specific update is in the reference."""
    length = centred_inner(gram, target, target, mean)
    return centred_inner(gram, reference, target, mean) / length if length > 0 else 0.0


def duel(gram: Gram, reference: Weights, claim: Weights, rival: Weights) -> float:
    """Where the reference stands on the line from the rival (0) to the claim (1); NaN where the two are equal."""
    line = claim - rival
    length = gram.inner(line, line)
    return gram.inner(reference - rival, line) / length if length > 0 else math.nan


def one_minus_p_cos(gram: Gram, a: Weights, b: Weights) -> float:
    """1 - cosine of the parameters theta_0 + a and theta_0 + b, without cancelling: half the squared distance of directions."""
    start = gram.one(START)
    a, b = start + a, start + b
    a = a / np.sqrt(gram.inner(a, a))
    b = b / np.sqrt(gram.inner(b, b))
    return max(gram.inner(a - b, a - b), 0.0) / 2
