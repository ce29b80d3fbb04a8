"""The gas table: does dealing the batch otherwise move the gap between data sets, or only the level?"""

import pytest

from pretrace.errors import PretraceError
from pretrace.retrace.case import recipes_of
from pretrace.retrace.parts import Dealt, Topologies
from pretrace.retrace.run import gas_table, run
from pretrace.retrace.tables import topology_lines
from pretrace.retrace.topologies import Cell, answer, movements_of, rows_of

DEALT = (
    Dealt(world_size=1, grad_accum_steps=8, micro_batch=1),
    Dealt(world_size=1, grad_accum_steps=1, micro_batch=8),
    Dealt(world_size=8, grad_accum_steps=1, micro_batch=1),
)


def cells(**distances):
    """One hypothesis a keyword: its L2 under each topology; P.Cos and U.Cos follow it."""
    return [
        Cell(name, 1, k + 1, 8, False, 4, 1 - l2 / 100, l2 / 100, 1 - l2 / 10, l2)
        for name, values in distances.items()
        for k, l2 in enumerate(values)
    ]


def test_a_level_that_moves_alone_leaves_the_gap():
    found = movements_of(cells(a=(1.0, 2.0, 3.0), b=(2.0, 3.0, 4.0)), "a")
    assert {m.moves for m in found} == {"only the level"}
    l2 = next(m for m in found if m.measure == "L2")
    assert (l2.gap, l2.gap_low, l2.gap_high, l2.level_low, l2.level_high) == (1.0, 1.0, 1.0, 1.5, 3.5)
    text = answer(found, 3)
    assert text.startswith("Gas and micro-batch move only the level between 'a' and 'b'")
    assert "the level moves by 200% (1 - P.Cos), 200% (L2)" in text


def test_a_gap_that_moves_is_said_with_its_sign():
    found = movements_of(cells(a=(1.0, 1.0, 1.0), b=(2.0, 3.0, 0.9)), "a")
    text = answer(found, 3)
    assert text.startswith("Gas and micro-batch move the gap between 'a' and 'b'")
    assert "its sign turns in 1 - P.Cos, L2, 1 - U.Cos" in text


def test_topologies_that_agree_move_neither():
    found = movements_of(cells(a=(1.0, 1.001, 1.0), b=(2.0, 2.001, 2.001)), "a")
    assert answer(found, 3).startswith("Gas and micro-batch move neither the gap nor the level")
    assert "keeps its sign under all 3 topologies" in answer(found, 3)


def test_measures_that_disagree_are_told_apart():
    mixed = [
        Cell("a", 1, 1, 8, False, 4, 0.9, 0.1, 0.9, 1.0), Cell("a", 1, 2, 4, False, 4, 0.9, 0.1, 0.9, 2.0),
        Cell("b", 1, 1, 8, False, 4, 0.8, 0.2, 0.8, 2.0), Cell("b", 1, 2, 4, False, 4, 0.8, 0.2, 0.8, 4.0),
    ]  # fmt: skip
    assert "depends on the measure: 1 - P.Cos neither, L2 the gap, 1 - U.Cos neither" in answer(
        movements_of(mixed, "a"), 2
    )


def test_the_table_is_trained_alone_and_ends_at_the_published_topology(made):
    folder, case, _ = made
    declared = case.model_copy(update={"topologies": Topologies(hypotheses=("b", "a"), dealt=DEALT)})
    found = gas_table(declared, folder, workers=0)
    assert [c.published for c in found.cells if c.step == 4] == [False, False, True] * 2
    exact = [c for c in found.cells if c.hypothesis == "a" and c.published and c.step == 4]
    # The reference's own data under its own topology, from the published fp16 start: nearer than any other row.
    assert exact[0].l2 == min(c.l2 for c in found.cells if c.step == 4)
    assert all(m.gap < 0 for m in found.movements)  # the claim b is the far one, under every topology
    assert topology_lines(found)[-1] == found.answer
    # Inside a whole case the same runs serve again.
    result = run(declared, folder, workers=0)
    assert result.topologies == found
    assert result.outcome == "contradicted"


def test_a_topology_that_changes_the_batch_is_refused(made):
    _, case, _ = made
    wrong = Topologies(hypotheses=("a", "b"), dealt=(DEALT[0], Dealt(world_size=2, grad_accum_steps=8, micro_batch=1)))
    with pytest.raises(PretraceError, match="changes the global batch from 8 to 16"):
        rows_of(case, wrong, recipes_of(case)[0])


def test_a_case_without_the_block_says_so(made, tmp_path):
    with pytest.raises(PretraceError, match="declares no topologies"):
        gas_table(made[1], tmp_path, workers=0)
