import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.step.orders import (
    Direct,
    GlooRing,
    NcclRing,
    NcclTree,
    Recorded,
    RecordedBuffer,
    RecordedRange,
    Tree,
    gloo_chain,
    paths,
    ranks_of,
    refuse_incomplete,
    tree_nesting,
)

RING = GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20)
ORDERS = (
    Direct(sum_dtype="wire"),
    Tree(sum_dtype="wire"),
    RING,
    NcclTree(sum_dtype="wire", ranks_per_node=1),
)


def test_gloo_adds_chunk_2_of_4_ranks_as_1_0_3_2():
    assert [path.nesting for path in paths(RING, 16, 4, 4, "all_reduce")][2] == (1, 0, 3, 2)


@given(world_size=st.integers(2, 32), chunk=st.integers(0, 31))
def test_every_rank_is_summed_once_and_the_owner_last(world_size, chunk):
    order = gloo_chain(chunk % world_size, world_size)
    assert sorted(order) == list(range(world_size))
    assert order[-1] == chunk % world_size


@given(
    order=st.sampled_from(ORDERS),
    world_size=st.integers(1, 17),
    numel=st.integers(0, 3000),
    itemsize=st.sampled_from([2, 4]),
)
def test_paths_cover_the_buffer_without_gaps_and_hold_every_rank_once(order, world_size, numel, itemsize):
    at = 0
    for path in paths(order, numel, itemsize, world_size, "all_reduce"):
        assert path.start == at < path.stop
        assert sorted(ranks_of(path.nesting)) == list(range(world_size))
        at = path.stop
    assert at == numel


@given(channels=st.integers(1, 4), world_size=st.integers(2, 9), numel=st.integers(1, 5000), chunk=st.integers(1, 600),
       collective=st.sampled_from(["all_reduce", "reduce_scatter"]))  # fmt: skip
def test_nccl_rings_cover_the_buffer_whatever_channels_and_chunks(channels, world_size, numel, chunk, collective):
    rings = tuple(tuple((i + c) % world_size for i in range(world_size)) for c in range(channels))
    found = paths(NcclRing(sum_dtype="wire", rings=rings, chunk_bytes=chunk), numel, 4, world_size, collective)
    assert [p.start for p in found] == [0, *[p.stop for p in found[:-1]]]
    assert found[-1].stop == numel
    assert all(sorted(ranks_of(p.nesting)) == list(range(world_size)) for p in found)


def test_nccl_ring_starts_at_the_successor_of_the_owner_opposite_to_gloo():
    ring = NcclRing(sum_dtype="wire", rings=((0, 1, 2, 3),), chunk_bytes=1 << 20)
    assert [p.nesting for p in paths(ring, 16, 4, 4, "all_reduce")] == [
        (1, 2, 3, 0),
        (2, 3, 0, 1),
        (3, 0, 1, 2),
        (0, 1, 2, 3),
    ]


def test_nccl_trees_of_four_nodes_are_the_binary_tree_and_its_mirror():
    found = paths(NcclTree(sum_dtype="wire", ranks_per_node=1), 8, 4, 4, "all_reduce")
    assert [p.nesting for p in found] == [(0, (2, 1, 3)), (3, (1, 2, 0))]


def test_nccl_tree_chains_the_ranks_of_a_node():
    found = paths(NcclTree(sum_dtype="wire", ranks_per_node=2), 8, 4, 4, "all_reduce")
    assert found[0].nesting == ((0, 1), (2, 3))


def test_tree_adds_neighbours_first():
    assert tree_nesting(0, 6) == (((0, 1), (2, 3)), (4, 5))


def test_a_schedule_that_misses_a_rank_is_refused():
    with pytest.raises(PretraceError, match="misses rank 2"):
        refuse_incomplete(NcclRing(sum_dtype="wire", rings=((0, 1, 3),), chunk_bytes=64), 4)


def recorded(*ranges, numel=8):
    pieces = tuple(RecordedRange(start=a, stop=b, nesting=n) for a, b, n in ranges)
    return Recorded(sum_dtype="wire", where="a cluster", buffers=(RecordedBuffer(numel=numel, ranges=pieces),))


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        (recorded((0, 8, (0, (1, 1)))), "misses rank 2"),
        (recorded((0, 4, (0, 1, 2)), (5, 8, (0, 1, 2))), "gap or overlap at element 4"),
        (recorded((0, 4, (0, 1, 2))), "end at 4 of 8"),
    ],
)
def test_a_recorded_order_with_a_hole_is_refused(order, fault):
    with pytest.raises(PretraceError, match=fault):
        refuse_incomplete(order, 3)


def test_a_recorded_order_refuses_a_buffer_it_has_not_seen():
    with pytest.raises(PretraceError, match="no buffer of 9 elements"):
        paths(recorded((0, 8, (0, (2, 1)))), 9, 4, 3, "all_reduce")
