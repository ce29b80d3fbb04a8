"""What a case comes to, as plain values: `--json` prints them, the report page formats them and computes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pretrace.findings import CheckNotRun, Finding
from pretrace.provenance import Judged, Outcome, Power
from pretrace.retrace.elsewhere import ElsewhereFound
from pretrace.retrace.losses import LossTest
from pretrace.retrace.sibling_distance import SiblingFound
from pretrace.retrace.stages import Stage
from pretrace.retrace.topologies import TopologyTable
from pretrace.runlog import Record


@dataclass(frozen=True, slots=True)
class AtStep:
    """All hypotheses at one step. Only the deciding step decides; the others describe."""

    step: int
    deciding: bool
    hypotheses: tuple[Judged, ...]  # the claim first
    sibling: Judged | None
    power: Power


@dataclass(frozen=True, slots=True)
class Setting:
    """One benign rerun of one hypothesis against the reference, uncentred: a descriptive row."""

    hypothesis: str
    setting: str
    p_cos: float
    one_minus_p_cos: float
    u_cos: float
    l2: float


@dataclass(frozen=True, slots=True)
class RivalDifference:
    """From which step on a rival's state can differ from the claim's."""

    rival: str
    first_step: int | None  # None: they share every batch that was compared
    steps_compared: int
    common_samples: float  # share of the claim's samples that the rival reads too, in any order


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run logged."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The verdict on a case, with everything it rests on. The first fields are the keys that scripts rely on."""

    outcome: Outcome
    claim: str
    deciding_step: int
    alpha: float
    hypotheses: tuple[Judged, ...]  # at the deciding step, the claim first; empty where the case ended before
    reason: str
    would_settle: str
    explained_by: str
    sibling: Judged | None
    steps: tuple[AtStep, ...]
    rivals: tuple[RivalDifference, ...]
    visible_from: dict[float, int | None]  # replaced fraction -> first step from which on it would be seen
    settings: tuple[Setting, ...]  # at the deciding step
    localiser: dict[str, dict[str, float]]  # hypothesis -> tensor -> centred score; shows where, proves nothing
    curves: tuple[Curve, ...]  # base reruns, and the reference where it has a log
    findings: tuple[Finding, ...]  # of the integrity stage
    checks_not_run: tuple[CheckNotRun, ...]
    case_digest: str
    rules_digest: str
    recipe_digests: dict[str, str]  # hypothesis -> digest of its base recipe
    n_runs: int
    elapsed_s: float
    environment: dict[str, Any]
    case_yaml: str
    recipe_yaml: str
    stages: tuple[Stage, ...] = ()  # in the order they ran; the last one that is `ended` gave the outcome
    siblings: SiblingFound | None = None  # of the sibling-distance stage
    loss_tests: tuple[LossTest, ...] = ()  # delta-loss windows and palimpsest ranks
    topologies: TopologyTable | None = None
    elsewhere: tuple[ElsewhereFound, ...] = ()  # hypotheses that were trained elsewhere: evidence, never a licence
    files: dict[str, str] = field(default_factory=dict)  # run -> the folder of its vectors and log, beside this result
