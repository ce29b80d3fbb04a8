"""The sibling-distance stage: is the difference there that other data should have made?

Two models of one size that share initial values and schedule and differ in their data move apart at a pace that couples of
other sizes show too. Where one couple's difference has collapsed, both of it were trained on the same batches, whatever their
labels. Nothing is trained for this.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pretrace.errors import PretraceError
from pretrace.retrace.case import Case
from pretrace.retrace.evidence import products
from pretrace.retrace.integrity import check
from pretrace.retrace.parts import Pair, Reference, SiblingDistance
from pretrace.retrace.published import Published, read_what_is_there, same_vector
from pretrace.retrace.series import steps_in

REFERENCE_PAIR = "reference"


@dataclass(frozen=True, slots=True)
class Distance:
    """Two runs at one step, by what they have moved."""

    pair: str
    step: int
    relative: float  # |u_a - u_b| / sqrt(|u_a|^2 + |u_b|^2): 0 the same update, 1 at right angles
    u_cos: float


@dataclass(frozen=True, slots=True)
class SiblingFound:
    """What the stage found; `why_not` says why it can say nothing."""

    distances: tuple[Distance, ...]  # the reference's couple first
    collapsed: bool  # at the deciding step
    made_by: str  # the hypothesis of the counterpart
    says: str
    notes: tuple[str, ...]  # couples that were left out, and why
    why_not: str = ""


def sibling_distance(case: Case, declared: SiblingDistance, keep: Path) -> SiblingFound:
    """Compares the reference with its counterpart, and both with the couples of other sizes.

    Raises
    ------
    PretraceError
        If the reference or the counterpart cannot be read.
    """
    own = Pair(a=case.located(case.reference), b=case.located(declared.counterpart))
    found = _distances(case, REFERENCE_PAIR, own, keep)
    if isinstance(found, str):
        return SiblingFound((), False, declared.made_by, f"the counterpart cannot be compared: {found}", (), found)
    distances, notes = list(found), []
    for name, pair in declared.pairs.items():
        couple = Pair(a=case.located(pair.a), b=case.located(pair.b))
        others = _distances(case, name, couple, keep)
        if isinstance(others, str):
            notes.append(f"{name}: {others}")
        else:
            distances += others
    return judge(tuple(distances), declared, case.deciding_step, tuple(notes))


def judge(
    distances: tuple[Distance, ...], declared: SiblingDistance, step: int, notes: tuple[str, ...] = ()
) -> SiblingFound:
    """Whether the reference's couple has collapsed at `step`, from distances alone."""
    at = {d.pair: d.relative for d in distances if d.step == step}
    own = at.pop(REFERENCE_PAIR, None)
    if own is None:
        why = f"the counterpart has no step {step}"
        return SiblingFound(distances, False, declared.made_by, why, notes, why)
    if not at:
        says = f"the two lie {own:.3g} of an update apart at step {step}; no other couple says what is usual"
        return SiblingFound(distances, False, declared.made_by, says, notes)
    near = min(at, key=lambda pair: at[pair])
    collapsed = own < declared.collapse * at[near]
    says = (
        f"at step {step} reference and counterpart lie {own:.3g} of an update apart, the nearest other couple ({near}) "
        f"{at[near]:.3g}: {'the difference has collapsed' if collapsed else 'the usual difference is there'}"
    )
    return SiblingFound(distances, collapsed, declared.made_by, says, notes)


def _distances(case: Case, name: str, pair: Pair, keep: Path) -> tuple[Distance, ...] | str:
    """Of one couple at every step that both have; or why there are none."""
    steps, first = case.steps, case.start.step
    # Both are rounded alike: a couple published in two dtypes is compared in that of the first.
    b_alike = Reference(checkpoints=pair.b.checkpoints, dtype=pair.a.dtype)
    try:
        a, b = (
            read_what_is_there(reference, first, steps, keep / f"{name}-{side}")
            for side, reference in (("a", pair.a), ("b", b_alike))
        )
    except PretraceError as error:
        if name == REFERENCE_PAIR:
            raise
        return error.what
    if a.segments != b.segments:
        return "the two have other parameters"
    if not same_vector(a.origin, b.origin):
        return "the two start from different values, so that their updates cannot be compared"
    # The reference itself has passed integrity before.
    if fault := next(filter(None, map(_unsound, (b,) if name == REFERENCE_PAIR else (a, b))), ""):
        return fault
    both = [step for step in steps if step in a.vectors and step in b.vectors]
    # A warm-up that starts at learning rate 0 leaves both at the start for one step: that one says nothing.
    moved = [step for step in both if not same_vector(a.vectors[step], a.origin)]
    if any(same_vector(a.vectors[step], b.vectors[step]) for step in moved):
        return "the two hold the same parameters, bit for bit: one of the series is a copy of the other"
    return tuple(_distance(name, step, a, b) for step in both)


def _unsound(published: Published) -> str:
    there = steps_in(published.reference.checkpoints)
    findings = check(there, published.vectors, published.reference.dtype, published.reference.checkpoints)
    return next((finding.what for finding in findings if finding.severity == "error"), "")


def _distance(name: str, step: int, a: Published, b: Published) -> Distance:
    rows = {"a": a.vectors[step], "b": b.vectors[step]}
    gram, _ = products(a.origin, rows, a.segments, a.reference.dtype)
    one, other = gram.one("a"), gram.one("b")
    length = gram.inner(one, one) + gram.inner(other, other)
    relative = gram.distance(one, other) / length**0.5 if length > 0 else 0.0
    return Distance(name, step, relative, gram.cosine(one, other))
