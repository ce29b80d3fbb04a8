import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.topology import Topology

SMALL = st.integers(1, 6)


def test_ranks_take_contiguous_blocks_and_micro_steps_follow_each_other():
    topology = Topology(world_size=2, grad_accum_steps=2, micro_batch=3)
    assert topology.global_batch == 12
    assert topology.positions(step=1, micro_step=0, rank=1) == range(15, 18)
    assert topology.positions(step=1, micro_step=1, rank=0) == range(18, 21)


@given(w=SMALL, g=SMALL, m=SMALL, step=st.integers(0, 10**9))
def test_an_update_reads_each_of_its_positions_once_whatever_the_topology(w, g, m, step):
    topology = Topology(world_size=w, grad_accum_steps=g, micro_batch=m)
    read = sorted(p for a in range(g) for r in range(w) for p in topology.positions(step, a, r))
    assert read == list(topology.step_positions(step))


@given(share=SMALL, processes=SMALL)
def test_processes_share_the_ranks_evenly(share, processes):
    topology = Topology(world_size=share * processes, grad_accum_steps=1, micro_batch=1)
    hosted = [rank for p in range(processes) for rank in topology.hosted(p, processes)]
    assert hosted == list(range(topology.world_size))


def test_a_number_of_processes_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(PretraceError, match="3 processes cannot share 8 ranks evenly"):
        Topology(world_size=8, grad_accum_steps=1, micro_batch=1).hosted(0, 3)
