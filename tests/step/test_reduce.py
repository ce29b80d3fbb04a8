import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrace.step.chains import ChainFold, all_chains
from pretrace.step.orders import Direct, GlooRing, NcclRing, Path, Tree, paths
from pretrace.step.reduce import Fold, fold_all, from_wire, scale, to_wire
from pretrace.step.reduction_spec import ScaleOp, root_low

WIRE = {"float32": 4, "bfloat16": 2, "float16": 2}


def orders(world_size):
    rings = (tuple(range(world_size)), tuple(reversed(range(world_size))))
    return (
        Direct(sum_dtype="wire"),
        Tree(sum_dtype="wire"),
        GlooRing(sum_dtype="wire", max_segment_bytes=64),
        NcclRing(sum_dtype="wire", rings=rings, chunk_bytes=16),
    )


def flats(world_size, numel, dtype):
    made = [torch.randn(numel, generator=torch.Generator().manual_seed(r)) for r in range(world_size)]
    return [m.to(getattr(torch, dtype)) for m in made]


@settings(max_examples=60)
@given(data=st.data(), world_size=st.integers(1, 9), numel=st.integers(1, 300), dtype=st.sampled_from(sorted(WIRE)))
def test_ranks_folded_as_they_arrive_in_any_order_give_the_bits_of_the_plain_sum(data, world_size, numel, dtype):
    order = data.draw(st.sampled_from(orders(world_size)))
    arrival = data.draw(st.permutations(range(world_size)))
    parts = flats(world_size, numel, dtype)
    along = paths(order, numel, WIRE[dtype], world_size, "all_reduce")
    fold = Fold(along, torch.empty_like(parts[0]))
    for rank in arrival:
        fold.add(rank, parts[rank].clone())
    assert torch.equal(fold.result(), fold_all(parts, along))
    assert fold.parking.live == 0


def test_a_wide_sum_of_bf16_rounds_once():
    parts = [torch.full((1,), v, dtype=torch.bfloat16) for v in (256.0, 1.0, 1.0)]
    along = (Path(0, 1, (0, 1, 2)),)
    assert fold_all(parts, along).item() == 256  # 256 + 1 rounds back to 256 in bf16, twice
    assert fold_all(parts, along, wide=True).item() == 258
    fold = Fold(along, torch.empty(1))
    for rank, part in enumerate(parts):
        fold.add(rank, part)
    assert from_wire(fold.result(), (), 3, torch.bfloat16, torch.float32).item() == 258


def test_three_thirds_by_multiplication_and_by_division_differ_in_the_last_bit():
    x = torch.full((1,), 5.0)
    mul, div = x.clone(), x.clone()
    scale(mul, [ScaleOp(where="before_cast", op="mul", by="world_size")], "before_cast", 3, torch.float32)
    scale(div, [ScaleOp(where="before_cast", op="div", by="world_size")], "before_cast", 3, torch.float32)
    assert abs(mul.view(torch.int32) - div.view(torch.int32)).item() == 1


def test_the_reciprocal_rounded_to_bf16_has_the_gain_that_ncclavg_has():
    ops = [ScaleOp(where="wire_pre", op="mul_rounded", by="world_size")]
    sent = to_wire(torch.ones(1), ops, 3, torch.bfloat16)
    assert sent.item() * 3 == pytest.approx(1.00195, abs=1e-5)  # +0.195% for W = 3, 6, 12, ...


def test_fsdp_splits_the_world_size_near_its_root():
    assert [root_low(w) for w in (1, 2, 4, 8, 12, 16, 512)] == [1, 2, 2, 4, 4, 4, 32]


def test_a_gloo_ring_visited_downwards_parks_half_of_what_arrives():
    parts = flats(8, 800, "float32")
    along = paths(GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20), 800, 4, 8, "all_reduce")
    fold = Fold(along, torch.empty(800))
    for rank in range(7, -1, -1):
        fold.add(rank, parts[rank])
    assert fold.parking.peak == pytest.approx(3.5 * 800 * 4, rel=0.1)  # (W - 1) / 2 gradients


def test_a_tree_holds_no_more_than_its_height():
    fold = Fold(paths(Tree(sum_dtype="wire"), 10, 4, 64, "all_reduce"), torch.empty(10))
    for rank, part in enumerate(flats(64, 10, "float32")):
        fold.add(rank, part)
    assert fold.parking.peak <= 6 * 40  # log2(64) buffers of 10 floats


@settings(max_examples=150)
@given(data=st.data(), world_size=st.integers(2, 9), numel=st.integers(1, 300), kept=st.integers(0, 9))
def test_chains_folded_in_runs_give_the_bits_of_the_plain_sum(data, world_size, numel, kept):
    order = data.draw(st.sampled_from([o for o in orders(world_size) if not isinstance(o, Tree)]))
    visits = data.draw(st.permutations(range(world_size)))
    parts = flats(world_size, numel, "bfloat16")
    along = paths(order, numel, 2, world_size, "all_reduce")
    assert all_chains(along)
    fold = ChainFold(along, torch.empty_like(parts[0]))
    while any(fold.wants(rank) for rank in visits):
        for rank in visits:
            if fold.wants(rank):
                fold.add(rank, parts[rank].clone(), keep=rank < kept)
    assert torch.equal(fold.result(), fold_all(parts, along))
    assert fold.parking.live == 0


@settings(max_examples=60)
@given(data=st.data(), world_size=st.integers(1, 9), numel=st.integers(1, 300), kept=st.integers(0, 9))
def test_ranks_played_again_instead_of_parked_give_the_same_bits(data, world_size, numel, kept):
    order = data.draw(st.sampled_from(orders(world_size)))
    parts = flats(world_size, numel, "bfloat16")
    along = paths(order, numel, 2, world_size, "all_reduce")
    fold = Fold(along, torch.empty_like(parts[0]))
    rounds = 0
    while any(fold.wants(rank) for rank in range(world_size)):
        for rank in range(world_size - 1, -1, -1):
            if fold.wants(rank):
                fold.add(rank, parts[rank].clone(), keep=rank < kept)
        rounds += 1
    assert torch.equal(fold.result(), fold_all(parts, along))
    assert rounds <= world_size
