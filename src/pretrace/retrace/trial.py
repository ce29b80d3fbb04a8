"""One case of the self-test: reference, reruns and decoys trained in memory, judged by the engine as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.arrays import ArraysView
from pretrace.data import DataSpec, Order, open_order
from pretrace.data.families import Listed
from pretrace.data.windows import join
from pretrace.provenance import (
    RULES,
    START,
    Gram,
    Judged,
    Runs,
    Verdict,
    coherent,
    decide,
    gram_of,
    judge,
    judge_all,
    stride,
)
from pretrace.recipe import Recipe
from pretrace.retrace.demo_recipe import dealt, recipe
from pretrace.retrace.evidence import REFERENCE
from pretrace.retrace.runs import flatten
from pretrace.retrace.selftest import REPLACED, SIZE, Noise, SelfCase, Tried, error_of

_STEP = SIZE.deciding_step
_N_DECOYS = RULES.min_decoys
_BF16 = {"step.kernels.compute_dtype": "bfloat16"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "whole-batch": dealt(1, 1, SIZE.global_batch) | {"step.kernels.compute_dtype": "float32"},
    "gas2": dealt(1, 2, SIZE.global_batch // 2) | {"step.kernels.compute_dtype": "float32"},
    "bf16": dealt(1, 1, SIZE.global_batch) | _BF16,
    "bf16-ranks2": dealt(2, 1, SIZE.global_batch // 2) | _BF16,
}
_BASE = "whole-batch"
_BENIGN = ({}, *_SETTINGS.values())  # the reference's own eight ranks among them

# Settings of the reference that the investigator does not list.
_UNMODELLED: tuple[dict[str, Any], ...] = (
    {"step.schedule.peak": 2.1e-3},
    {"model.dropout.residual": 0.1},
    {"step.optimizer.betas": [0.9, 0.98]},
    {"step.schedule.warmup_steps": round(1.25 * _STEP)},
    {"step.clip.max_norm": 0.8},
)
_WILD = {
    "model.dropout.residual": 0.5,
    "model.dropout.embed": 0.5,
    "model.dropout.attention": 0.5,
    "step.kernels.attention": "eager",
}


@dataclass(frozen=True, slots=True)
class Draw:
    """The seeds of one case."""

    init: int
    claim: int
    rival: int
    other: int
    first_decoy: int
    setting: int
    unmodelled: int
    dropout: int


def draw(case: SelfCase, extra: int = 0) -> Draw:
    """All seeds of a case; `extra` gives those of its sibling. Orders of one case never share a seed."""
    rng = np.random.default_rng([case.seed, case.number, extra])
    claim = int(rng.integers(1, 2**31 - 100))
    return Draw(
        init=int(rng.integers(2**31)), claim=claim, rival=claim + 1, other=claim + 2, first_decoy=claim + 10,
        setting=int(rng.integers(len(_BENIGN))), unmodelled=int(rng.integers(len(_UNMODELLED))), dropout=int(rng.integers(2**31)),
    )  # fmt: skip


def try_case(case: SelfCase) -> Tried:
    """Trains and judges one case. The sibling is trained only where the verdict asks for it."""
    seeds = draw(case)
    claim, rival = _recipe(case, "standard", seeds.claim, seeds.init), _recipe(case, "deduped", seeds.rival, seeds.init)
    runs: dict[str, Runs] = {}
    rows: dict[str, Recipe] = {}
    for name, own in (("claim", claim), ("rival", rival)):
        runs[name], made = _runs(name, own, seeds.first_decoy)
        rows |= made
    gram = _gram(claim, _reference(case, seeds, claim, rival), rows)
    judged = judge_all(gram, REFERENCE, "claim", runs, RULES)
    verdict = decide("claim", judged, None, RULES)
    if verdict.outcome == "undecided" and verdict.reason.startswith("nothing explains"):
        verdict = decide("claim", judged, _sibling(case), RULES)
    far = {_STEP: stride(gram, REFERENCE, runs.values(), 2.0**-10)}  # published in float16
    return _tried(case, coherent(_STEP, {_STEP: verdict}, far))


def _tried(case: SelfCase, verdict: Verdict) -> Tried:
    own = verdict.evidence[0]
    true = {"claim": 1.0, "part": 1.0 - float(_hit(draw(case).other)[: _STEP * SIZE.global_batch].mean())}
    return Tried(
        case.number, case.truth, case.noise, verdict.outcome, verdict.explained_by, verdict.reason, own.centred, own.share,
        true.get(case.truth, 0.0), own.p_exact, error_of(case.truth, verdict.outcome),
    )  # fmt: skip


def _recipe(case: SelfCase, edition: str, order_seed: int, init_seed: int) -> Recipe:
    chosen = getattr(case.editions, edition)
    return recipe(SIZE, chosen, case.editions.vocab_size, name=edition, order_seed=order_seed, init_seed=init_seed)


def _runs(name: str, own: Recipe, first_decoy: int) -> tuple[Runs, dict[str, Recipe]]:
    reruns = {f"{name}/{setting}": own.with_values(edits) for setting, edits in _SETTINGS.items()}
    decoys = {
        f"{name}/decoy-{k}": own.with_values({**_SETTINGS[_BASE], "data.order.seed": first_decoy + k})
        for k in range(_N_DECOYS)
    }
    return Runs(tuple(reruns), tuple(decoys)), {**reruns, **decoys}


def _reference(case: SelfCase, seeds: Draw, claim: Recipe, rival: Recipe) -> tuple[Recipe, Order | None]:
    """How the reference is made: the true order, under the settings that the noise asks for."""
    settings = _noise(case.noise, seeds)
    if case.truth == "claim":
        return claim.with_values(settings), None
    if case.truth == "rival":
        return rival.with_values(settings), None
    if case.truth == "neither":
        return claim.with_values({**settings, "data.order.seed": seeds.other}), None
    return claim.with_values(settings), _mixed(_open(claim.data), _open(rival.data), seeds.other)


def _noise(noise: Noise, seeds: Draw) -> dict[str, Any]:
    settings = {**_BENIGN[seeds.setting], "seeds.dropout": seeds.dropout}
    if noise == "unmodelled":
        settings |= _UNMODELLED[seeds.unmodelled]
    return settings | (_WILD if noise == "wild" else {})


def _mixed(own: Order, other: Order, seed: int) -> Order:
    """The own order with a part of its samples replaced by samples from anywhere in the other."""
    hit = _hit(seed)
    n = len(hit)
    samples = own.sample_ids(range(n)).copy()
    elsewhere = np.random.default_rng([seed, 1]).integers(0, len(other), int(hit.sum()))
    samples[hit] = len(own.windows) + np.concatenate([other.sample_ids(range(k, k + 1)) for k in elsewhere.tolist()])
    return Order(own.spec, Listed(samples, n), join([own.windows, other.windows]))


def _hit(seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(SIZE.horizon * SIZE.global_batch) < REPLACED


def _sibling(case: SelfCase) -> Judged:
    """Another run whose data are known, under noise of the same kind, judged on its own recipe."""
    seeds = draw(case, extra=1)
    own = _recipe(case, "standard", seeds.claim, seeds.init)
    runs, rows = _runs("sibling", own, seeds.first_decoy)
    gram = _gram(own, (own.with_values(_noise(case.noise, seeds)), None), rows)
    return judge(gram, "sibling", REFERENCE, runs, RULES)


def _gram(start_of: Recipe, reference: tuple[Recipe, Order | None], rows: Mapping[str, Recipe]) -> Gram:
    """All inner products at the deciding step: the reference goes on in full precision, the others start from fp16."""
    from pretrace.train import replay

    first = replay(start_of, [0], order=_open(start_of.data)).snapshots[0]
    published = ArraysView({name: array.astype(np.float16) for name, array in first.items()})
    origin = _vector(first)
    made, order = reference
    truth = replay(made, [_STEP], order=order or _open(made.data)).snapshots[_STEP]
    updates = {REFERENCE: _vector(truth) - origin}
    updates |= {row: _vector(state) - origin for row, state in _states(rows, published).items()}
    names = (START, REFERENCE, *rows)
    return gram_of(names, [np.stack([origin, *(updates[name] for name in names[1:])])])


def _states(rows: Mapping[str, Recipe], published: ArraysView) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Every row's parameters at the deciding step. Base reruns and decoys of one hypothesis are trained together, alike."""
    from pretrace.retrace.ensemble import replay_together
    from pretrace.train import replay

    made = {}
    together: dict[str, list[str]] = {}
    for row, own in rows.items():
        hypothesis, _, setting = row.partition("/")
        if setting == _BASE or setting.startswith("decoy-"):
            together.setdefault(hypothesis, []).append(row)
        else:
            made[row] = replay(own, [_STEP], start=published, order=_open(own.data)).snapshots[_STEP]
    for alike in together.values():
        orders = [_open(rows[row].data) for row in alike]
        made |= dict(zip(alike, replay_together(rows[alike[0]], orders, _STEP, published), strict=True))
    return made


def _vector(state: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    return flatten(state, "float16").astype(np.float64)


@lru_cache(maxsize=4)
def _open(spec: DataSpec) -> Order:
    return open_order(spec)
