import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.step.exchange import collapse, jobs, owned, pieces
from pretrace.step.orders import Direct, GlooRing, NcclTree, Tree, paths
from pretrace.step.reduce import fold_all

ORDERS = (
    Direct(sum_dtype="wire"),
    Tree(sum_dtype="wire"),
    GlooRing(sum_dtype="wire", max_segment_bytes=64),
    NcclTree(sum_dtype="wire", ranks_per_node=1),
)


def test_a_tree_whose_subtrees_are_hosted_travels_as_one_piece_a_process():
    parts, outer = collapse(((0, 1), (2, 3)), lambda rank: rank // 2)
    assert [p.nesting for p in parts] == [(0, 1), (2, 3)]
    assert outer == (0, 1)


def value(nesting, leaves):
    if isinstance(nesting, int):
        return leaves[nesting]
    total = value(nesting[0], leaves)
    for member in nesting[1:]:
        total = total + value(member, leaves)
    return total


@given(order=st.sampled_from(ORDERS), share=st.integers(1, 4), processes=st.integers(1, 5), numel=st.integers(1, 80))
def test_parts_added_by_their_process_and_then_by_the_owner_give_the_plain_sum(order, share, processes, numel):
    world = share * processes
    flats = [torch.randn(numel, generator=torch.Generator().manual_seed(r)).bfloat16() for r in range(world)]
    along = paths(order, numel, 2, world, "all_reduce")
    found = jobs(along, numel, world, processes)
    out = torch.zeros(numel, dtype=torch.bfloat16)
    for job in found:
        cut = [flat[job.start : job.stop] for flat in flats]
        out[job.start : job.stop] = value(job.outer, [value(part.nesting, cut) for part in job.parts])
    assert torch.equal(out, fold_all(flats, along))


@given(order=st.sampled_from(ORDERS), share=st.integers(1, 4), processes=st.integers(1, 5), numel=st.integers(1, 80))
def test_every_part_is_sent_once_to_the_owner_of_its_elements(order, share, processes, numel):
    world = share * processes
    found = jobs(paths(order, numel, 4, world, "all_reduce"), numel, world, processes)
    sent = [(n, i) for a in range(processes) for b in range(processes) for n, i, _ in pieces(found, a, b)]
    assert sorted(sent) == [(n, i) for n, job in enumerate(found) for i in range(len(job.parts))]
    for job in found:
        a, b = owned(numel, job.owner, processes)
        assert a <= job.start < job.stop <= b
