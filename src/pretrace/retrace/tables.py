"""What a terminal shows of all that is not a verdict: self-test, plan, order pairs, tests without training, gas table."""

from __future__ import annotations

from collections.abc import Sequence

from pretrace.digest import short
from pretrace.retrace.budget import Cost
from pretrace.retrace.losses import LossTest
from pretrace.retrace.pairs import OrderPair, OrderPairs
from pretrace.retrace.selftest import Rate, SelftestResult
from pretrace.retrace.sibling_distance import SiblingFound
from pretrace.retrace.topologies import TopologyTable


def selftest_lines(result: SelftestResult) -> list[str]:
    """What a terminal shows of a self-test."""
    shown = [
        f"{result.cases} fresh cases with known truth, seed {result.seed}, engine {short(result.rules_digest)}",
        "",
        f"  {'truth':<9} {'noise':<11} {'cases':>5}  {'supported':>9} {'partly':>7} {'contradicted':>13} {'undecided':>10}",
    ]
    shown += [
        f"  {cell.truth:<9} {cell.noise:<11} {cell.n:>5}  {cell.supported:>9} {cell.partly:>7} {cell.contradicted:>13} "
        f"{cell.undecided:>10}"
        for cell in result.table
    ]
    shown += ["", f"  false support of a false claim         {rate(result.false_support)}",
              f"  false contradiction of a true claim    {rate(result.false_contradiction)}"]  # fmt: skip
    shown += [f"  decided, {noise + ' noise':<29} {rate(decided)}" for noise, decided in result.decided.items()]
    shown.append(f"  partly true claims, wrongly decided    {rate(result.partly)}")
    if result.recovered:
        r = result.recovered
        shown.append(f"  share printed of partly true claims    mean {r.mean:.2f} where {r.true_mean:.2f} is true "
                     f"(from {r.low:.2f} to {r.high:.2f}; mean error {r.mean_error:+.2f})")  # fmt: skip
    return shown


def rate(found: Rate) -> str:
    """A rate with its exact 95% interval."""
    return f"{found.events} of {found.n} (95%: {100 * found.low:.1f}% to {100 * found.high:.1f}%)"


def loss_lines(tests: Sequence[LossTest]) -> list[str]:
    """What a terminal shows of tests that need no training, one block a test."""
    shown: list[str] = []
    for what in dict.fromkeys(test.what for test in tests):
        shown += ([""] if shown else []) + _loss_block([test for test in tests if test.what == what])
    return shown


def _loss_block(tests: Sequence[LossTest]) -> list[str]:
    wide = max(10, *(len(test.hypothesis) for test in tests))
    head = f"  {'hypothesis':<{wide}}  {'sequences':>11}  {'statistic':>9}  {'z':>6}  p by document   p by sequence"
    shown = [f"{tests[0].what}: small p means that the model saw the sequences as claimed", "", head]
    for test in tests:
        n = f"{test.n_seen}" + (f" vs {test.n_later}" if test.n_later else "")
        by, alone = test.by_document, test.by_sequence
        shown.append(
            f"  {test.hypothesis:<{wide}}  {n:>11}  {by.statistic:>9.3f}  {by.z:>6.1f}  {by.p:<14.3f}  {alone.p:.3f}"
        )
    return shown


def cost_line(cost: Cost) -> str:
    """What a plan costs, in one line."""
    return (
        f"{cost.runs} runs of {cost.deciding_step} updates, {cost.decoys} decoys a hypothesis: {cost.tokens:.3g} tokens, "
        f"{cost.hours:.3g} device-hours, {cost.money:.3g} in money"
    )


def pair_lines(found: OrderPairs) -> list[str]:
    """Every pair of candidates, and those that no replay to the deciding step can part."""
    shown = [f"  {_pair(pair)}" for pair in found.pairs]
    shown.append("")
    if found.coinciding:
        names = "; ".join(f"{a!r} and {b!r}" for a, b in found.coinciding)
        shown.append(f"Not to be told apart at the deciding step {found.deciding_step}: {names}.")
        shown.append("  Next: declare a later deciding step, or drop one of each.")
    else:
        shown.append(f"All {len(found.candidates)} candidates differ before the deciding step {found.deciding_step}.")
    return shown


def _pair(pair: OrderPair) -> str:
    both = f"{pair.a} and {pair.b}"
    common = f"{100 * pair.common_samples:.3g}% of the first's samples are read by the other too"
    if pair.first_step is None:
        return f"{both} share every batch of the {pair.steps_compared} steps compared"
    if pair.first_step == 1:
        return f"{both} differ from the first step on ({common})"
    return f"{both} share every batch to step {pair.first_step - 1} ({common})"


def sibling_lines(found: SiblingFound) -> list[str]:
    """Distances of every couple by step, and what they say."""
    shown = [found.says[:1].upper() + found.says[1:] + ".", ""]
    if found.distances:
        wide = max(9, *(len(d.pair) for d in found.distances))
        shown.append(f"  {'couple':<{wide}}  {'step':>6}  {'distance':>9}  {'U.Cos':>7}")
        shown += [f"  {d.pair:<{wide}}  {d.step:>6}  {d.relative:>9.4f}  {d.u_cos:>7.4f}" for d in found.distances]
    return shown + [f"  left out: {note}" for note in found.notes]


def topology_lines(found: TopologyTable) -> list[str]:
    """The table of the last step, and its answer."""
    last = max(cell.step for cell in found.cells)
    cells = [cell for cell in found.cells if cell.step == last]
    wide = max(10, *(len(cell.hypothesis) for cell in cells))
    shown = [
        f"  {'hypothesis':<{wide}}  {'ranks':>5}  {'gas':>4}  {'micro-batch':>11}  {'1 - P.Cos':>10}  {'L2':>10}  {'U.Cos':>8}"
    ]
    shown += [
        f"  {c.hypothesis:<{wide}}  {c.world_size:>5}  {c.grad_accum_steps:>4}  {c.micro_batch:>11}  "
        f"{c.one_minus_p_cos:>10.3e}  {c.l2:>10.4e}  {c.u_cos:>8.5f}{'  published' if c.published else ''}"
        for c in cells
    ]
    return [*shown, "", found.answer]
