"""A run in memory: from its start to a step, with the parameters at the steps that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.view import StateView
from pretrace.data.order import Order
from pretrace.model.state import snapshot
from pretrace.recipe.spec import Recipe
from pretrace.runlog.record import Record
from pretrace.train.update import advance, begin

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Replay:
    """Parameters by step, and the record of every update."""

    snapshots: dict[int, Arrays]
    records: tuple[Record, ...]


def replay(
    recipe: Recipe,
    steps: Collection[int],
    *,
    start: StateView | None = None,
    order: Order | None = None,
    watch: Callable[[Record], None] | None = None,
) -> Replay:
    """Trains `recipe` up to the last of `steps` and keeps float32 copies of the parameters after each of them.

    Parameters
    ----------
    steps : updates done; 0 (or the step of `recipe.start`) asks for the state before the first update.
    start : canonical tensors to start from; None: the recipe's own initial values.
    order : the opened `recipe.data`, where the caller has it.
    watch : called with every record as it comes.
    """
    training = begin(recipe, start=start, order=order)
    snapshots = {training.step: snapshot(training.state.model)} if training.step in steps else {}
    records = []
    while training.step < max(steps, default=0):  # a recipe may start from a later step than 0
        records.append(advance(training))
        if watch is not None:
            watch(records[-1])
        if training.step in steps:
            snapshots[training.step] = snapshot(training.state.model)
    return Replay(snapshots, tuple(records))
