"""All candidates against each other by what they read, before anything is trained: from which step can two be told apart?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from pretrace.data import open_order
from pretrace.data.order import content_hashes, difference_of
from pretrace.errors import PretraceError
from pretrace.retrace.case import Case, hypothesis_recipe, recipes_of


@dataclass(frozen=True, slots=True)
class OrderPair:
    """Two candidates. States are equal up to step `first_step` - 1, since update k + 1 reads batch k."""

    a: str
    b: str
    first_step: int | None  # the first step whose state can differ; None: none that was compared
    steps_compared: int
    equal_samples: float  # share of positions that hold the same tokens
    common_samples: float  # share of a's samples that b reads too, in any place


@dataclass(frozen=True, slots=True)
class OrderPairs:
    """Every pair of candidates."""

    candidates: tuple[str, ...]
    deciding_step: int
    pairs: tuple[OrderPair, ...]
    coinciding: tuple[
        tuple[str, str], ...
    ]  # pairs that share every batch up to the deciding step: no replay can part them


def order_pairs(
    case: Case, steps: int, advance: Callable[[int, int, str], None] = lambda done, total, what: None
) -> OrderPairs:
    """Compares what all candidates read in the first `steps` updates, by the content of the tokens; each order is read once.

    Raises
    ------
    PretraceError
        If a token file cannot be read, or `steps` does not reach the deciding step.
    """
    if steps < case.deciding_step:
        raise PretraceError(
            f"{steps} steps do not reach the deciding step {case.deciding_step}",
            "--steps",
            "compare at least that many",
        )
    recipe, _ = recipes_of(case)
    names = tuple(case.replayed)
    hashes, batch = {}, recipe.step.global_batch
    for k, name in enumerate(names, 1):
        hashes[name] = content_hashes(open_order(hypothesis_recipe(case, recipe, name).data), batch, steps)
        advance(k, len(names), name)
    found = []
    for a, b in combinations(names, 2):
        difference = difference_of(hashes[a], hashes[b], batch)
        first = None if difference.first_step is None else difference.first_step + 1
        found.append(OrderPair(a, b, first, difference.steps, difference.equal_samples, difference.common_samples))
    together = tuple((p.a, p.b) for p in found if p.first_step is None or p.first_step > case.deciding_step)
    return OrderPairs(names, case.deciding_step, tuple(found), together)
