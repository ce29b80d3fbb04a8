"""What the page of a case shows beside the replay, on a result made by hand."""

from dataclasses import replace

import pytest

from pretrace.provenance import Power
from pretrace.provenance.losses import PermutationTest
from pretrace.report.case import page
from pretrace.report.page import Figure, Link, Table, render
from pretrace.retrace.elsewhere import ElsewhereFound, ElsewhereStep
from pretrace.retrace.losses import LossTest
from pretrace.retrace.result import AtStep
from pretrace.retrace.sibling_distance import Distance, SiblingFound
from pretrace.retrace.stages import Stage
from pretrace.retrace.topologies import Cell, TopologyTable, answer, movements_of
from report.test_case import CLAIM, RESULT, RIVAL, SIBLING

TEST = PermutationTest(0.05, -7.0, 0.001, 999, 100)
CELLS = tuple(
    Cell(name, 1, gas, 8 // gas, gas == 8, 16, 1 - l2 / 100, l2 / 100, 1 - l2 / 10, l2)
    for name, distances in {"standard": (0.1, 0.5), "deduped": (1.1, 1.5)}.items()
    for gas, l2 in zip((1, 8), distances)
)
STEP = ElsewhereStep(16, 0.99, 0.01, 0.9, 0.1, 0.97, 0.9, 19, 19, {"deduped": 0.1, "standard": 0.9})
FULL = replace(
    RESULT,
    steps=(*RESULT.steps, AtStep(32, False, (CLAIM, RIVAL), SIBLING, Power(32, 0.002, 512))),
    stages=(Stage("integrity", "no fault"), Stage("replay", "contradicted", ended=True)),
    siblings=SiblingFound((Distance("reference", 16, 0.9, 0.2), Distance("small", 16, 0.8, 0.3)), False, "standard", "usual", ()),
    loss_tests=(LossTest("standard", "delta-loss of (8, 16]", 2, 3, TEST, TEST, (-0.2, -0.1), (0.0, 0.1, 0.2)),),
    topologies=TopologyTable(CELLS, movements_of(CELLS, "deduped"), answer(movements_of(CELLS, "deduped"), 2)),
    elsewhere=(
        ElsewhereFound("neox", "not replayed here", "runs", "ab" * 32, "standard", (STEP,)),
        ElsewhereFound("late", "not replayed here", "runs", "cd" * 32, "", (), "it did not start from the same values"),
    ),
    files={"standard/gas8": "runs/abc"},
)  # fmt: skip


@pytest.fixture(scope="module")
def sections():
    return {section.title: section for section in page(FULL).sections}


def test_every_stage_says_whether_it_ended_the_case(sections):
    assert list(sections["Stages"].rows) == [
        ("integrity", "went on", "no fault"), ("replay", "ended the case", "contradicted"),
    ]  # fmt: skip


def test_the_ecdf_carries_every_change_of_loss(sections):
    figure = sections["Delta-loss: seen against later"]
    assert isinstance(figure, Figure)
    assert ("standard", "seen in the window", -0.2) in figure.rows
    assert len(figure.rows) == 5


def test_the_gas_table_ends_with_its_answer(sections):
    table = sections["Gas and micro-batch"]
    assert table.note.startswith("Gas and micro-batch move only the level between 'deduped' and 'standard'")
    assert [row[4] for row in table.rows] == ["", "yes", "", "yes"]
    assert len(sections["Level and gap"].rows) == 4


def test_what_was_trained_elsewhere_is_marked_in_every_row(sections):
    rows = sections["Trained elsewhere"].rows
    assert {row[1] for row in rows} == {"not replayed here"}
    assert rows[0][4] == "above 19 of 19 decoys of standard"
    assert rows[1][4] == "it did not start from the same values"


def test_the_power_curve_has_a_point_a_step(sections):
    assert [row[:2] for row in sections["Power"].rows] == [(8, 0.1), (16, 0.01), (32, 0.002)]


def test_evidence_files_are_links_beside_the_page(sections):
    table = sections["Evidence files"]
    assert isinstance(table, Table)
    assert table.rows == [("standard/gas8", Link("runs/abc", "runs/abc/"))]
    text = render(page(FULL))
    assert '<a href="runs/abc/">runs/abc</a>' in text
    assert "nan" not in text.split("<script>", maxsplit=1)[0].replace("finance", "")


def test_a_case_without_them_shows_none_of_it():
    titles = {section.title for section in page(RESULT).sections}
    assert not titles & {"Trained elsewhere", "Sibling distance", "Gas and micro-batch", "Evidence files"}
