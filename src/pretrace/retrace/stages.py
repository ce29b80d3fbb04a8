"""The stages before the replay, each of which may end the case: sibling distance, delta-loss, palimpsest.

None of them can support a claim: the difference may be there, or the text remembered, under an order that is only similar. They
can contradict it before anything is trained, where the case file allowed that beforehand. Their findings are reported side by
side and never multiplied: they share the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pretrace.findings import CheckNotRun
from pretrace.provenance import RULES
from pretrace.retrace.case import Case
from pretrace.retrace.losses import Choice, LossTest, ranks, windows
from pretrace.retrace.parts import DeltaLoss, Palimpsest
from pretrace.retrace.sibling_distance import SiblingFound, sibling_distance

_Z_OF_AN_INSIDER = 4.0  # a correlation this far on the wrong side: the reference model had read the order itself

StageName = Literal["integrity", "sibling distance", "delta-loss", "palimpsest", "replay"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a case: what it says, and whether it ended the case."""

    name: StageName
    says: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """A contradiction without training: which stage, by which rival, and why."""

    stage: StageName
    explained_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Before:
    """All that was found before the replay."""

    stages: tuple[Stage, ...] = ()
    not_run: tuple[CheckNotRun, ...] = ()
    siblings: SiblingFound | None = None
    losses: tuple[LossTest, ...] = ()
    ending: Ending | None = field(default=None)


def before_replay(case: Case, keep: Path, tell: Callable[[str], None]) -> Before:
    """Runs the declared stages in their order, until one ends the case.

    Raises
    ------
    PretraceError
        If a checkpoint or a token file cannot be read.
    """
    found = Before()
    for stage in (_siblings, _delta_loss, _palimpsest):
        found = stage(case, keep, found, tell)
        if found.ending:
            break
    return found


def _siblings(case: Case, keep: Path, found: Before, tell: Callable[[str], None]) -> Before:
    declared = case.sibling_distance
    if declared is None:
        return _not_run(found, "sibling distance", "the case declares no counterpart")
    tell("comparing the reference with its counterpart")
    siblings = sibling_distance(case, declared, keep / "siblings")
    if siblings.why_not:
        return replace(_not_run(found, "sibling distance", siblings.says), siblings=siblings)
    ending = None
    if siblings.collapsed and declared.may_end and case.claim != declared.made_by:
        at = next(d for d in siblings.distances if d.step == case.deciding_step)
        reason = (
            f"its updates are those of the counterpart, which {declared.made_by!r} made: "
            f"{at.relative:.2g} of an update apart"
        )
        ending = Ending("sibling distance", declared.made_by, reason)
    return _ran(replace(found, siblings=siblings), "sibling distance", siblings.says, ending)


def _delta_loss(case: Case, _: Path, found: Before, tell: Callable[[str], None]) -> Before:
    declared = case.delta_loss
    if declared is None:
        return _not_run(found, "delta-loss", "the case declares no windows")
    tests: tuple[LossTest, ...] = ()
    for first, last in declared.windows:
        tell(f"losses of the window ({first}, {last}]")
        deciding = windows(case, first, last, delta_choice(declared))
        tests += deciding
    found = replace(found, losses=found.losses + tests)
    return _ran(found, "delta-loss", says(deciding, declared.alpha), _ending(case, "delta-loss", deciding, declared))


def _palimpsest(case: Case, _: Path, found: Before, tell: Callable[[str], None]) -> Before:
    declared = case.palimpsest
    if declared is None:
        return _not_run(found, "palimpsest", "the case declares no step for it")
    tell(f"losses of the whole order at step {declared.step}")
    outsider = case.at(declared.outsider) if declared.outsider else None
    tests = ranks(case, declared.step, outsider, palimpsest_choice(declared))
    found = replace(found, losses=found.losses + tests)
    if known := [test.hypothesis for test in tests if outsider and test.by_document.z > _Z_OF_AN_INSIDER]:
        text = f"the outsider was itself trained on {', '.join(map(repr, known))}: the sign is reversed, and nothing follows"
        return _ran(found, "palimpsest", text, None)
    return _ran(found, "palimpsest", says(tests, declared.alpha), _ending(case, "palimpsest", tests, declared))


def delta_choice(declared: DeltaLoss) -> Choice:
    """How the case draws its windows."""
    return Choice(declared.permutations, declared.seed, declared.later, declared.seen)


def palimpsest_choice(declared: Palimpsest) -> Choice:
    """How the case draws its ranks."""
    return Choice(declared.permutations, declared.seed, at_most=declared.sequences)


def _ending(case: Case, stage: StageName, tests: Sequence[LossTest], declared: DeltaLoss | Palimpsest) -> Ending | None:
    rival = contradicted_by(case.claim, tests, declared.alpha)
    if rival is None or not declared.may_end:
        return None
    own = next(test for test in tests if test.hypothesis == case.claim)
    reason = (
        f"the model has seen what {rival.hypothesis!r} claims for it (p {rival.by_document.p:.2g} by document), and not what the "
        f"claim says (p {own.by_document.p:.2g}); {rival.what}"
    )
    return Ending(stage, rival.hypothesis, reason)


def contradicted_by(claim: str, tests: Sequence[LossTest], alpha: float) -> LossTest | None:
    """The rival whose sequences were seen where the claim's were not; None where the test does not say so.

    The claim's own p must be above the case's alpha of 0.05, and the rival's must pass Holm's procedure over all hypotheses.
    """
    p = {test.hypothesis: test.by_document.p for test in tests}
    if p[claim] <= RULES.alpha:
        return None
    rivals = [test for test in tests if test.hypothesis in holm(p, alpha) and test.hypothesis != claim]
    return min(rivals, key=lambda test: test.by_document.z, default=None)


def holm(p: Mapping[str, float], alpha: float) -> frozenset[str]:
    """The names whose p passes Holm's step-down procedure at `alpha` over all of them.

    >>> sorted(holm({"a": 0.001, "b": 0.02, "c": 0.9}, 0.05))
    ['a', 'b']
    """
    passed: list[str] = []
    for k, name in enumerate(sorted(p, key=lambda each: p[each])):
        if p[name] > alpha / (len(p) - k):
            break
        passed.append(name)
    return frozenset(passed)


def says(tests: Sequence[LossTest], alpha: float) -> str:
    """What one test says of all hypotheses, in a sentence."""
    seen = holm({test.hypothesis: test.by_document.p for test in tests}, alpha)
    names = [repr(test.hypothesis) for test in tests if test.hypothesis in seen]
    if not names:
        return f"{tests[0].what}: no hypothesis's sequences are known to the model (alpha {alpha:g}, Holm)"
    claim = "claim" if len(names) > 1 else "claims"
    return f"{tests[0].what}: the model has seen what {' and '.join(names)} {claim} (alpha {alpha:g}, Holm)"


def _ran(found: Before, name: StageName, text: str, ending: Ending | None) -> Before:
    return replace(found, stages=(*found.stages, Stage(name, text, ending is not None)), ending=ending)


def _not_run(found: Before, name: StageName, why: str) -> Before:
    return replace(found, not_run=(*found.not_run, CheckNotRun(name, why)))
