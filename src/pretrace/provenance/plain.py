"""The statistics of a verdict on whole vectors: the slow version, which is the specification of `centred.py`.

Axes: D elements of an update, K benign reruns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]  # [D]


def centre(update: Vector, mean: Vector) -> Vector:
    """`update` without the drift that all orders share: minus the mean, and minus what is left along the mean.

    The second part matters for a noisy reference: its drift is shrunken, and would otherwise resemble any candidate that
    lacks it.
    """
    rest = update - mean
    length = mean @ mean
    return rest - (rest @ mean) / length * mean if length > 0 else rest


def score(reference: Vector, target: Vector, mean: Vector) -> float:
    """Cosine of the centred updates: 1 is the whole order-specific update, 0 an unrelated order."""
    a, b = centre(reference, mean), centre(target, mean)
    lengths = (a @ a) * (b @ b)
    return float(a @ b / np.sqrt(lengths)) if lengths > 0 else 0.0


def share(reference: Vector, target: Vector, mean: Vector) -> float:
    """How much of the target's order-specific update is in the reference; blind to noise at right angles."""
    a, b = centre(reference, mean), centre(target, mean)
    return float(a @ b / (b @ b)) if b @ b > 0 else 0.0


def duel(reference: Vector, claim: Vector, rival: Vector) -> float:
    """Where the reference stands on the line from the rival (0) to the claim (1); NaN where the two are equal."""
    line = claim - rival
    return float((reference - rival) @ line / (line @ line)) if line @ line > 0 else float("nan")
