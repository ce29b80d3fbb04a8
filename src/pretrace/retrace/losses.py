"""The stages that need no training: delta-loss windows and the palimpsest rank, for every hypothesis of a case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrace.data import Order, open_order
from pretrace.errors import PretraceError
from pretrace.provenance.losses import PermutationTest, delta_loss, palimpsest
from pretrace.recipe import Recipe
from pretrace.retrace.case import Case, hypothesis_recipe, recipes_of
from pretrace.retrace.series import open_canonical, steps_in

_AT_ONCE = 64  # sequences in one forward


@dataclass(frozen=True, slots=True)
class LossTest:
    """One hypothesis under one test. `by_document` decides; `by_sequence` is exact where samples are shuffled."""

    hypothesis: str
    what: str
    n_seen: int
    n_later: int
    by_document: PermutationTest
    by_sequence: PermutationTest
    seen: tuple[float, ...] = ()  # of a window: the change of each seen sequence's loss in nats, sorted
    later: tuple[float, ...] = ()  # and that of the later ones


@dataclass(frozen=True, slots=True)
class Choice:
    """How the tests are drawn."""

    permutations: int = 999
    seed: int = 1
    later: int = 768  # sequences claimed for after the last checkpoint
    at_most: int | None = None  # seen sequences: the last of a window, or evenly spread up to a step; None: all


def windows(case: Case, first: int, last: int, choice: Choice) -> tuple[LossTest, ...]:
    """For each hypothesis: did the loss fall more on what it claims for updates `first` + 1 .. `last` than on what comes later?

    Raises
    ------
    PretraceError
        If a checkpoint is missing, an order does not reach beyond the last one, or the window goes backwards.
    """
    if not 0 <= first < last:
        raise PretraceError(f"a window goes from one step to a later one, not from {first} to {last}", "--from, --to",
                            "give the step before the window first")  # fmt: skip
    there = steps_in(case.at(case.reference.checkpoints))
    recipe, _ = recipes_of(case)
    before, after = (_path(there, step, case) for step in (first, last))
    found = []
    for name in case.replayed:
        own = hypothesis_recipe(case, recipe, name)
        order = open_order(own.data)
        batch = own.step.global_batch
        # Of a long window the last part: what came first is half forgotten.
        seen = range(max(first * batch, last * batch - (choice.at_most or last * batch)), last * batch)
        later = _later(order, max(there) * batch, choice.later, name)
        positions = [*seen, *later]
        change = losses(after, own, order, positions) - losses(before, own, order, positions)
        is_seen = np.arange(len(positions)) < len(seen)
        units = documents(order, positions)
        by, alone = (delta_loss(change, is_seen, u, choice.permutations, choice.seed) for u in (units, None))
        fell, stayed = (tuple(sorted(change[part].tolist())) for part in (is_seen, ~is_seen))
        found.append(LossTest(name, f"delta-loss of ({first}, {last}]", len(seen), len(later), by, alone, fell, stayed))
    return tuple(found)


def ranks(case: Case, step: int, outsider: str | Path | None, choice: Choice) -> tuple[LossTest, ...]:
    """For each hypothesis: is the loss at `step` lower on what it claims to have come later?

    `outsider` is a checkpoint of the same model trained on none of the hypotheses: its loss is taken off. One that was trained on
    a hypothesis shows itself by a positive correlation for that one.

    Raises
    ------
    PretraceError
        If a checkpoint is missing or cannot be read.
    """
    there = steps_in(case.at(case.reference.checkpoints))
    recipe, _ = recipes_of(case)
    found = []
    for name in case.replayed:
        own = hypothesis_recipe(case, recipe, name)
        order = open_order(own.data)
        positions = _spread(step * own.step.global_batch, choice.at_most)
        loss = losses(_path(there, step, case), own, order, positions)
        if outsider is not None:
            loss = loss - losses(Path(outsider), own, order, positions)
        when = np.array(positions, np.int64) // own.step.global_batch
        units = documents(order, positions)
        by, alone = (palimpsest(loss, when, u, choice.permutations, choice.seed) for u in (units, None))
        found.append(LossTest(name, f"palimpsest rank at step {step}", len(positions), 0, by, alone))
    return tuple(found)


def losses(checkpoint: Path, recipe: Recipe, order: Order, positions: list[int]) -> NDArray[np.float64]:
    """The mean loss in nats of each sequence, [len(positions)]."""
    from pretrace.score.likelihood import decoder_of, log_likelihoods

    with open_canonical(checkpoint) as view:
        model = decoder_of(view, recipe.model)
    out = []
    for run in _runs(positions):
        batch = order.batch(run)
        out.append(-log_likelihoods(model, batch).astype(np.float64).mean(axis=1))
    return np.concatenate(out)


def documents(order: Order, positions: list[int]) -> NDArray[np.int64]:
    """The document that most of each sequence comes from, as a number."""
    found: dict[tuple[int, int], int] = {}
    out = []
    for position in positions:
        most = max(order.documents(position), key=lambda span: span.stop - span.start)
        out.append(found.setdefault((most.source, most.document), len(found)))
    return np.array(out, np.int64)


def _runs(positions: list[int]) -> list[range]:
    """Positions as runs of neighbours, each of at most `_AT_ONCE`."""
    runs: list[range] = []
    for position in positions:
        if runs and runs[-1].stop == position and len(runs[-1]) < _AT_ONCE:
            runs[-1] = range(runs[-1].start, position + 1)
        else:
            runs.append(range(position, position + 1))
    return runs


def _spread(n: int, at_most: int | None) -> list[int]:
    """Positions below `n`, all of them or `at_most`, evenly spread."""
    if at_most is None or at_most >= n:
        return list(range(n))
    return [k * n // at_most for k in range(at_most)]


def _later(order: Order, start: int, n: int, name: str) -> range:
    later = range(start, min(start + n, len(order)))
    if len(later) < 16:
        raise PretraceError(
            f"the order of {name!r} ends {len(later)} sequences after the last checkpoint: nothing to compare with",
            "hypotheses", "declare more samples in data.order (num_samples or epochs)",
        )  # fmt: skip
    return later


def _path(there: dict[int, Path], step: int, case: Case) -> Path:
    if step not in there:
        raise PretraceError(f"the series has no step {step}; it has {', '.join(map(str, there))}",
                            case.reference.checkpoints, "name steps that are there")  # fmt: skip
    return there[step]
