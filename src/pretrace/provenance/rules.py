"""The thresholds of the decision engine, as one hashed value: locked before a reference is read, printed with every verdict.

Each number was fixed on pilot cases and then frozen; `docs/verdicts.md` says how often the engine errs with them.
"""

from __future__ import annotations

from pretrace.spec import Spec


class Rules(Spec):
    """What counts as reproduced, partial, absent or blind, and when a duel is won."""

    alpha: float  # the exact rank decides: p <= alpha
    min_decoys: int  # fewer cannot reach alpha: 1 / (M + 1) <= alpha
    min_positives: int  # benign reruns of each hypothesis
    clear_sds: float  # a signal stands this many decoy SDs above the decoys' mean
    min_positive: float  # benign reruns below this centred score show nothing
    reproduced_of_positive: (
        float  # reproduced: at least this part of the benign reruns' mean score and a share near 1 ...
    )
    reproduced_alone: float  # ... or at least this part, whatever the share: then a setting scales the update
    share_within: float  # how near: of a share to 1, and of a won duel to 1 or 0
    absent_of_positive: float  # absent: below this part of the benign reruns' mean score
    share_floor: float  # "partly" is not said of a smaller share
    duel_alpha: float  # a duel's t test against the half-way point (a t tail, hence stricter than alpha)
    same_alpha: float  # p_same below this is called an unexplained residual


RULES = Rules(
    alpha=0.05,
    min_decoys=19,
    min_positives=4,
    clear_sds=4.0,
    min_positive=0.3,
    reproduced_of_positive=0.7,
    reproduced_alone=0.9,
    share_within=0.35,
    absent_of_positive=0.5,
    share_floor=0.10,
    duel_alpha=0.01,
    same_alpha=0.01,
)
