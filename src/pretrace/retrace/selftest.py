"""How often does the verdict err? Cases whose truth is known, each trained afresh, judged by the engine as it is.

A matrix of truths and noises: the claim is true, false with the truth among the rivals, false with the truth unlisted, or partly
true; the reference was made under listed settings, under settings the investigator does not model, or under wild ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pretrace.executor import Workers, map_tasks
from pretrace.provenance import RULES, Outcome
from pretrace.provenance.tails import clopper_pearson
from pretrace.retrace.books import Editions, make_editions
from pretrace.retrace.demo_recipe import Size

Truth = Literal["claim", "rival", "neither", "part"]
Noise = Literal["benign", "unmodelled", "wild"]

SIZE = Size(320, 1, 32, 16, 1, (6,), 6, 32)
REPLACED = 0.6  # of the sequences, where the truth is "part"

# Fourteen cases: six whose claim is true, six whose claim is false, two whose claim is partly true.
CELLS: tuple[tuple[Truth, Noise], ...] = (
    ("claim", "benign"), ("rival", "benign"), ("claim", "unmodelled"), ("neither", "benign"), ("part", "benign"),
    ("claim", "benign"), ("rival", "unmodelled"), ("claim", "wild"), ("neither", "unmodelled"), ("claim", "unmodelled"),
    ("rival", "benign"), ("claim", "benign"), ("neither", "benign"), ("part", "benign"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SelfCase:
    """One case to try. Everything random in it follows from `seed` and `number`."""

    number: int
    seed: int
    truth: Truth
    noise: Noise
    editions: Editions


@dataclass(frozen=True, slots=True)
class Tried:
    """What was said of one case."""

    number: int
    truth: Truth
    noise: Noise
    outcome: Outcome
    explained_by: str
    reason: str
    centred: float  # of the claim
    share: float
    true_share: float  # of the claim's sequences, in what the reference read
    p_exact: float
    wrong: str  # "support", "contradiction", or nothing


@dataclass(frozen=True, slots=True)
class Rate:
    """How often an error was made, with its exact 95% interval."""

    events: int
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Cell:
    """All cases of one truth and noise."""

    truth: Truth
    noise: Noise
    n: int
    supported: int
    partly: int
    contradicted: int
    undecided: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The share that was printed where the true one is known."""

    n: int
    true_mean: float
    mean: float
    mean_error: float
    low: float  # of the printed shares
    high: float


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The error rates. The first keys are those that scripts rely on."""

    cases: int
    false_support: Rate  # of cases whose claim is false
    false_contradiction: Rate  # of cases whose claim is true
    table: tuple[Cell, ...]
    wrong: tuple[Tried, ...]
    decided: dict[str, Rate]  # by noise, of cases whose claim is true or false: how many were decided at all
    partly: Rate  # of partly true claims: those called supported or contradicted
    recovered: Recovered | None
    seed: int
    rules_digest: str


def selftest(
    out: str | Path, *, cases: int, seed: int, workers: int | Workers = 2,
    advance: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> SelftestResult:  # fmt: skip
    """Tries `cases` fresh cases; finished ones are kept in `out`, so that a stopped self-test goes on.

    Raises
    ------
    PretraceError
        If `out` cannot be written, or a case cannot be run.
    """
    from pretrace.retrace.trial import try_case

    out = Path(out)
    editions = make_editions(out / "data", vocab_size=SIZE.vocab_size, every=4)
    plan = {f"case-{seed}-{n:05d}": SelfCase(n, seed, *CELLS[n % len(CELLS)], editions) for n in range(cases)}
    tried = []
    for result in map_tasks(try_case, plan, workers=workers, keep=out / f"cases-{RULES.digest()[:8]}"):
        tried.append(result.get())
        advance(len(tried), cases, f"{tried[-1].truth}/{tried[-1].noise}: {tried[-1].outcome}")
    return tabulate(sorted(tried, key=lambda each: each.number), seed)


def error_of(truth: Truth, outcome: Outcome) -> str:
    """What is wrong with an outcome, if anything. "Undecided" never is; nor is "partly" of a true claim."""
    if truth in ("rival", "neither"):
        return "support" if outcome in ("supported", "partly") else ""
    if truth == "part" and outcome == "supported":
        return "support"
    return "contradiction" if outcome == "contradicted" else ""


def tabulate(tried: Sequence[Tried], seed: int) -> SelftestResult:
    """The error rates of tried cases."""
    false = [each for each in tried if each.truth in ("rival", "neither")]
    true = [each for each in tried if each.truth == "claim"]
    part = [each for each in tried if each.truth == "part"]
    plain = [each for each in (*true, *false) if each.noise != "wild"]
    return SelftestResult(
        cases=len(tried),
        false_support=_rate(bool(each.wrong) for each in false),
        false_contradiction=_rate(bool(each.wrong) for each in true),
        table=_cells(tried),
        wrong=tuple(each for each in tried if each.wrong),
        decided={
            noise: _rate(each.outcome != "undecided" for each in plain if each.noise == noise)
            for noise in ("benign", "unmodelled")
        },
        partly=_rate(bool(each.wrong) for each in part),
        recovered=_recovered(part),
        seed=seed,
        rules_digest=RULES.digest(),
    )


def _rate(events: object) -> Rate:
    found = list(events)  # type: ignore[call-overload]
    low, high = clopper_pearson(sum(found), len(found)) if found else (0.0, 1.0)
    return Rate(sum(found), len(found), low, high)


def _cells(tried: Sequence[Tried]) -> tuple[Cell, ...]:
    made = []
    for truth, noise in dict.fromkeys(
        sorted(CELLS, key=lambda cell: ("claim", "rival", "neither", "part").index(cell[0]))
    ):
        outcomes = Counter(each.outcome for each in tried if (each.truth, each.noise) == (truth, noise))
        counts = [outcomes[o] for o in ("supported", "partly", "contradicted", "undecided")]
        made.append(Cell(truth, noise, sum(counts), *counts))
    return tuple(made)


def _recovered(part: Sequence[Tried]) -> Recovered | None:
    if not part:
        return None
    printed, true = np.array([each.share for each in part]), np.array([each.true_share for each in part])
    return Recovered(
        len(part), float(true.mean()), float(printed.mean()), float((printed - true).mean()), float(printed.min()),
        float(printed.max()),
    )  # fmt: skip
