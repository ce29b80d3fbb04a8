"""The grid: 13 references with known truth, 5 candidate orders, 4 steps. Decide what can be decided, and nothing wrongly.

A is the claim; S another shuffle of its data; B the deduplicated edition; C unrelated text; Bal equals A for eight steps of eight
sequences, then leaves out three samples in ten. Up to step 8 A and Bal share every batch: no verdict may tell them apart there.
"""

from dataclasses import replace

import numpy as np
import pytest

from pretrace.checkpoint import ArraysView
from pretrace.data import open_order
from pretrace.data.families import Listed
from pretrace.provenance import RULES, START, Runs, decide, gram_of, judge_all
from pretrace.retrace.books import make_editions
from pretrace.retrace.demo_recipe import Size, recipe
from pretrace.retrace.ensemble import replay_together
from pretrace.retrace.runs import flatten
from pretrace.retrace.trial import _SETTINGS
from pretrace.train import replay
from retrace_lab import edition

SIZE = Size(320, 1, 32, 16, 1, (4, 6, 8, 16), 16, 40)
STEPS, SHARED = SIZE.steps, 8
DROPOUT = {"model.dropout.residual": 0.1}
STRONG = {f"model.dropout.{place}": 0.3 for place in ("embed", "residual")}
GONE = {f"model.dropout.{place}": 0.9 for place in ("embed", "residual")}
REFERENCES = {
    ("A", "bf16"): {"step.kernels.compute_dtype": "bfloat16"},
    ("A", "dropout"): DROPOUT,
    ("A", "lr +10%"): {"step.schedule.peak": 2.2e-3},
    ("A", "beta2"): {"step.optimizer.betas": [0.9, 0.999]},
    ("A", "warm-up"): {"step.schedule.warmup_steps": 20},
    ("Bal", "bf16"): {"step.kernels.compute_dtype": "bfloat16"},
    ("S", "bf16"): {"step.kernels.compute_dtype": "bfloat16"},
    ("B", "bf16"): {"step.kernels.compute_dtype": "bfloat16"},
    ("C", "bf16"): {"step.kernels.compute_dtype": "bfloat16"},
    ("S", "dropout"): DROPOUT,
    ("B", "dropout"): DROPOUT,
    ("A", "strong noise"): STRONG,
    ("A", "signal gone"): GONE,
}
DATA_OF = {"A": "standard", "S": "standard", "B": "deduped", "Bal": "deduped", "C": "other"}


@pytest.fixture(scope="module")
def situations(tmp_path_factory):
    """(truth, noise, step) -> verdict on the claim "A"."""
    folder = tmp_path_factory.mktemp("grid")
    made = make_editions(folder, vocab_size=SIZE.vocab_size, every=4)
    rng = np.random.default_rng(0)
    other = edition(folder, "other", [rng.integers(0, 320, size=200) for _ in range(200)])
    data = {"standard": made.standard, "deduped": made.deduped, "other": other}
    recipes = {
        name: recipe(SIZE, data[DATA_OF[name]], made.vocab_size, name=name, order_seed=seed, init_seed=1)
        for name, seed in (("A", 1), ("S", 2), ("B", 1), ("C", 1))
    }
    recipes["Bal"] = recipes["A"]  # of other samples: see `orders`
    orders = {name: open_order(own.data) for name, own in recipes.items()}
    orders["Bal"] = thinned(orders["A"])
    first = replay(recipes["A"], [0]).snapshots[0]
    start = ArraysView({name: array.astype(np.float16) for name, array in first.items()})
    origin = flatten(first, "float16").astype(np.float64)
    rows, runs = hypotheses(recipes, orders, start)
    return {
        (truth, noise, step): verdict
        for (truth, noise), edits in REFERENCES.items()
        for step, verdict in judged(recipes[truth].with_values(edits), orders[truth], rows, runs, origin).items()
    }


def thinned(order):
    ids = order.sample_ids(range(SIZE.horizon * SIZE.global_batch))
    kept = np.random.default_rng(1).random(len(ids)) > 0.3
    kept[: SHARED * SIZE.global_batch] = True
    return replace(order, sampler=Listed(ids[kept], int(kept.sum())))


def hypotheses(recipes, orders, start):
    """Row -> step -> state, and which rows are whose. Decoys are shared by the hypotheses on the same data."""
    states, runs, decoys = {}, {}, {}
    for name, own in recipes.items():
        base = own.with_values(_SETTINGS["whole-batch"])
        states[f"{name}/whole-batch"] = together(base, [orders[name]], start)[0]
        for setting in ("gas2", "bf16", "bf16-ranks2"):
            changed = own.with_values(_SETTINGS[setting])
            states[f"{name}/{setting}"] = replay(changed, STEPS, start=start, order=orders[name]).snapshots
        pool = DATA_OF[name]
        if pool not in decoys and name != "Bal":
            shuffled = [open_order(base.with_values({"data.order.seed": 100 + k}).data) for k in range(19)]
            found = together(base, shuffled, start)
            decoys[pool] = tuple(f"{pool}/decoy-{k}" for k in range(19))
            states |= dict(zip(decoys[pool], found, strict=True))
    for name in recipes:
        runs[name] = Runs(tuple(f"{name}/{setting}" for setting in _SETTINGS), decoys[DATA_OF[name]])
    return states, runs


def together(own, orders, start):
    by_step = {step: replay_together(own, orders, step, start) for step in STEPS}
    return [{step: by_step[step][k] for step in STEPS} for k in range(len(orders))]


def judged(own, order, rows, runs, origin):
    states = replay(own, STEPS, order=order).snapshots
    verdicts = {}
    for step in STEPS:
        table = [origin, *(flatten(s[step], "float16").astype(np.float64) - origin for s in (states, *rows.values()))]
        gram = gram_of((START, "reference", *rows), [np.stack(table)])
        found = judge_all(gram, "reference", "A", runs, RULES)
        verdicts[step] = decide("A", found, None, RULES, {"Bal": SHARED + 1})
    return verdicts


def is_wrong(truth, step, verdict):
    if truth == "A" or (truth == "Bal" and step <= SHARED):
        return verdict.outcome == "contradicted"
    return verdict.outcome in ("supported", "partly") or verdict.explained_by not in ("", truth)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_none_of_the_52_situations_is_decided_wrongly_and_half_are_decided(situations):
    assert len(situations) == 52
    wrong = [(*key, v.outcome, v.reason) for key, v in situations.items() if is_wrong(key[0], key[2], v)]
    assert wrong == []
    decided = [key for key, v in situations.items() if v.outcome != "undecided"]
    assert len(decided) >= 26


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_shares_every_batch_is_never_told_apart(situations):
    for (truth, _, step), verdict in situations.items():
        if truth in ("A", "Bal") and step <= SHARED:
            assert verdict.outcome == "undecided"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_settings_that_are_not_listed_leave_the_data_verdict(situations):
    for noise in ("bf16", "dropout", "lr +10%", "beta2", "warm-up"):
        assert situations["A", noise, 16].outcome == "supported"
