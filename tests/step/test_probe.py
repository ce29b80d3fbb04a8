"""The probe finds the order in which a collective adds its ranks, or says that none can be seen."""

import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pretrace.cli.main import app
from pretrace.errors import PretraceError
from pretrace.files import read_json, write_json
from pretrace.spec import build
from pretrace.step import probe, probe_tree
from pretrace.step.execute import execute
from pretrace.step.orders import GlooRing, Recorded, paths
from pretrace.step.probe_collect import MAGNITUDES, collect
from pretrace.step.state import begin
from tiny import RING, TREE, flat, gpt, plan, read


def summed(nesting, copies):
    if isinstance(nesting, int):
        return copies[nesting].clone()
    total = summed(nesting[0], copies)
    for member in nesting[1:]:
        total = total + summed(member, copies)
    return total


def looked_at(world_size, dtype, reduce, numel=3):
    """What `collect` would see on every rank of a collective that is played here."""
    big, unit = MAGNITUDES[dtype]

    def play(pair):
        values = [big if r == pair[0] else -big if r == pair[1] else unit for r in range(world_size)]
        total = reduce([torch.full((numel,), v, dtype=getattr(torch, dtype)) for v in values])
        return [[float(v) / unit, 1] for v in total.float()]

    pairs = [[i, j, play((i, j))] for i in range(world_size) for j in range(i + 1, world_size)]
    raw = {
        "world_size": world_size,
        "numel": numel,
        "dtype": dtype,
        "stable": True,
        "pairs": pairs,
        "collective": "all_reduce",
    }
    return probe.understand(raw | {"about": "here"})


def nestings(ranks):
    """All binary trees over `ranks`, drawn at random."""
    if len(ranks) == 1:
        return st.just(ranks[0])
    return st.integers(1, len(ranks) - 1).flatmap(lambda cut: st.tuples(nestings(ranks[:cut]), nestings(ranks[cut:])))


@given(
    nesting=st.integers(2, 9).flatmap(lambda n: st.permutations(range(n))).flatmap(nestings),
    dtype=st.sampled_from(sorted(MAGNITUDES)),
)
def test_any_tree_of_additions_is_found_again(nesting, dtype):
    world_size = len(probe_tree._meet(nesting, [[0] * 9 for _ in range(9)]))
    seen = looked_at(world_size, dtype, lambda copies: summed(nesting, copies))
    (piece,) = seen.ranges
    assert probe_tree.meetings(piece.nesting, world_size) == probe_tree.meetings(nesting, world_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_sum_wider_than_the_wire_shows_no_order(dtype):
    wider = torch.float64 if dtype == "float32" else torch.float32
    seen = looked_at(5, dtype, lambda copies: sum(c.to(wider) for c in copies).to(copies[0].dtype))
    assert seen.verdict == "no-order-visible"
    assert seen.words.startswith("no order visible")
    with pytest.raises(PretraceError, match="no order visible"):
        probe.record([seen])


def test_fixed_point_sums_show_no_order_either():
    seen = looked_at(
        4, "float32", lambda c: sum((x.double() * 2.0**20).long() for x in c).double().div(2.0**20).float()
    )
    assert seen.verdict == "no-order-visible"


def test_an_order_that_changes_from_call_to_call_is_not_recorded(monkeypatch):
    flips = iter([0, 1] * 100)

    def collective(buffer):  # rank 0 of 3 looks; the others are played
        copies = [buffer.clone() for _ in range(3)]
        return summed((0, 1, 2) if next(flips) else (2, 1, 0), copies) * 0 + next(flips)

    raw = collect(collective, 0, 3, 4, "float32")
    monkeypatch.setitem(raw, "stable", False)
    assert probe.understand(raw | {"collective": "all_reduce", "about": ""}).verdict == "unstable"


def test_counts_that_are_no_number_of_ranks_are_no_tree():
    seen = looked_at(4, "float32", lambda copies: summed((0, 1, 2, 3), copies) * 0.3)
    assert seen.verdict == "no-tree"


def test_two_sizes_seen_in_two_orders_do_not_go_into_one_file():
    one = looked_at(3, "float32", lambda c: summed((0, 1, 2), c))
    two = looked_at(3, "float32", lambda c: summed((2, 1, 0), c))
    with pytest.raises(PretraceError, match="two orders"):
        probe.record([one, two])


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [2, 3, *(pytest.param(w, marks=pytest.mark.slow) for w in (4, 8))])
def test_gloo_is_recorded_as_the_ring_that_plans_declare(world_size, tmp_path):
    out = tmp_path / "order.json"
    sizes = [1001] if world_size == 8 else [7, 1001]
    wide = ["bfloat16", "float32"] if world_size < 8 else ["bfloat16"]
    result = CliRunner().invoke(app, [
        "probe", "--spawn", str(world_size), "--out", str(out), "--json",
        *(word for n in sizes for word in ("--numel", str(n))), "--dtype", wide[0],
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    seen = json.loads(result.output)["seen"]
    assert [one["numel"] for one in seen] == sizes
    recorded = build(Recorded, read_json(out), where=str(out))
    ring = GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20)
    for numel in sizes:
        known = paths(ring, numel, 2, world_size, "all_reduce")
        assert probe._same(paths(recorded, numel, 2, world_size, "all_reduce"), known, world_size)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_plan_replays_a_recorded_order_with_the_bits_of_the_declared_one(tmp_path):
    numel = sum(p.numel() for p in gpt(d=16, layers=1).parameters())
    out = tmp_path / "order.json"
    CliRunner().invoke(app, ["probe", "--spawn", "3", "--numel", str(numel), "--out", str(out)])
    ends = []
    for order in (read_json(out), RING, TREE):
        of, model = plan(world_size=3, reduction__order=order), gpt(d=16, layers=1)
        state = begin(of, model)
        for step in range(3):
            execute(of, state, read, step=step)
        ends.append(flat(model))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.distributed
@pytest.mark.slow
def test_reduce_scatter_on_gloo_is_the_ring_of_the_whole_buffer(tmp_path):
    result = CliRunner().invoke(
        app, ["probe", "--spawn", "3", "--numel", "12", "--collective", "reduce_scatter", "--json"]
    )
    (one,) = json.loads(result.output)["seen"]
    known = paths(GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20), 12, 4, 3, "reduce_scatter")
    assert [tuple(piece["nesting"]) for piece in one["ranges"]]
    ranges = [probe.RecordedRange.model_validate(piece) for piece in one["ranges"]]
    assert probe._same(ranges, known, 3)


def test_the_script_stands_alone():
    code = CliRunner().invoke(app, ["probe", "--print-script"]).output
    assert "import pretrace" not in code
    assert "from pretrace" not in code
    compile(code, "probe_collect.py", "exec")


@pytest.mark.parametrize("content", [{}, {"buffers": [{}]}, {"buffers": 3}, [],
    {"buffers": [{"world_size": 2, "numel": 5, "dtype": "float32", "stable": True, "collective": "all_reduce",
                  "pairs": [[0, 1, [[0, 3]]]]}]}])  # fmt: skip
def test_a_file_that_is_no_probe_is_refused(tmp_path, content):
    write_json(tmp_path / "raw.json", content)
    with pytest.raises(PretraceError, match="not a raw file"):
        probe.read(tmp_path / "raw.json")


def test_a_probe_needs_a_launcher_or_spawn(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    result = CliRunner().invoke(app, ["probe", "--numel", "4"])
    assert isinstance(result.exception, PretraceError)
    assert "no launcher" in str(result.exception)
    assert sys.modules["pretrace.step.probe_run"]
