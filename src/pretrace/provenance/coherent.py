"""May the verdict of the deciding step stand beside what else is known of the reference?

Two faults of a published series look like evidence about data if one step is seen alone: the step taken from another run, which
another hypothesis then explains, and the start taken from another run, which nothing explains. Both ways out lead to
"undecided" only, so no verdict that the engine did not reach can come of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from pretrace.provenance.decide import Verdict
from pretrace.provenance.gram import START, Gram
from pretrace.provenance.judge import Runs

# A learning rate three times as large is another run, whose own sibling would have to vouch for it. Not one of the frozen rules:
# it takes a verdict back and makes none.
_FAR = 3.0


def coherent(deciding_step: int, verdicts: Mapping[int, Verdict], strides: Mapping[int, float]) -> Verdict:
    """The verdict of the deciding step, or "undecided" where the reference does not hang together.

    Parameters
    ----------
    verdicts : of the steps that were compared; those after the deciding one are not looked at.
    strides : how many times as far as the replays the reference has moved, by step (`stride`).
    """
    found = verdicts[deciding_step]
    return _steps_disagree(deciding_step, verdicts) or _another_start(found, strides) or found


def stride(gram: Gram, reference: str, hypotheses: Collection[Runs], spacing: float) -> float:
    """How many times as far as the replays the reference has moved, beyond what rounding explains; 1: as far as one of them.

    Of all hypotheses the one whose reruns come nearest counts. `spacing` is the relative distance of neighbouring numbers of the
    published dtype (2^-10 for float16): both ends of an update are off by up to half of it.
    """
    noise = spacing * _length(gram, (START,))
    moved = _length(gram, (reference,))
    ratios = [_ratio(moved, _length(gram, runs.own), noise) for runs in hypotheses]
    return min(ratios, key=_away_from_one)


def _length(gram: Gram, names: Collection[str]) -> float:
    mean = gram.mean(tuple(names))
    return math.sqrt(max(gram.inner(mean, mean), 0.0))


def _ratio(moved: float, predicted: float, noise: float) -> float:
    if moved > predicted:
        beyond = max(moved - noise, predicted)
        return beyond / predicted if predicted > 0 else (math.inf if moved > noise else 1.0)
    return min(moved + noise, predicted) / predicted if predicted > 0 else 1.0


def _away_from_one(ratio: float) -> float:
    return abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf


def _steps_disagree(deciding_step: int, verdicts: Mapping[int, Verdict]) -> Verdict | None:
    found = verdicts[deciding_step]
    if found.outcome not in ("supported", "contradicted"):
        return None
    other = {
        step: verdict.explained_by for step, verdict in verdicts.items()
        if step < deciding_step and verdict.explained_by not in ("", found.explained_by)
    }  # fmt: skip
    if not other:
        return None
    step, name = max(other.items())
    here = f"{found.explained_by!r} explains" if found.explained_by else "nothing explains"
    return _open(
        found,
        f"the steps of the reference disagree: {name!r} explains step {step}, {here} step {deciding_step}",
        f"compare steps {step} and {deciding_step} with another copy, one may be another run's; or list a hypothesis that "
        "changes its data in between",
    )


def _another_start(found: Verdict, strides: Mapping[int, float]) -> Verdict | None:
    # Where nothing fits, the contradiction rests on the sibling, which vouches for the stack: neither for this reference's
    # start nor for its learning rate.
    if found.outcome != "contradicted" or found.explained_by:
        return None
    step, far = max(strides.items(), key=lambda each: _away_from_one(each[1]))
    if _away_from_one(far) <= math.log(_FAR):
        return None
    times = "far more" if math.isinf(far) else f"{far:.2g} times"
    return _open(
        found,
        f"nothing explains the reference, and up to step {step} it has moved {times} as far as any replay: its start may be "
        "another run's, or its learning rate another",
        "compare the start with another copy of the series, or list the learning rate as a rival",
    )


def _open(found: Verdict, reason: str, would_settle: str) -> Verdict:
    return replace(found, outcome="undecided", reason=reason, would_settle=would_settle, explained_by="")
