"""Provenance: from update vectors to a verdict, in numpy only.

`gram_of` reads all updates once; `judge_all` places a reference between decoy orders and benign reruns and sets the hypotheses
against each other; `decide` says supported, partly, contradicted or undecided; `coherent` takes that back where the steps of the
reference contradict each other; `power_curve` says beforehand what could be seen.
"""

from pretrace.provenance.coherent import coherent, stride
from pretrace.provenance.decide import EXIT_CODES, Outcome, Verdict, decide
from pretrace.provenance.gram import START, Gram, gram_of, published, update_of
from pretrace.provenance.judge import Duel, Judged, Runs, Status, judge, judge_all
from pretrace.provenance.power import Power, power_curve
from pretrace.provenance.rules import RULES, Rules

__all__ = [
    "EXIT_CODES",
    "RULES",
    "START",
    "Duel",
    "Gram",
    "Judged",
    "Outcome",
    "Power",
    "Rules",
    "Runs",
    "Status",
    "Verdict",
    "coherent",
    "decide",
    "gram_of",
    "judge",
    "judge_all",
    "power_curve",
    "published",
    "stride",
    "update_of",
]
