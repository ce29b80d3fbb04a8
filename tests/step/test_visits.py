import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.step.execute import execute
from pretrace.step.orders import GlooRing, NcclRing, Tree, paths
from pretrace.step.parking import Parking
from pretrace.step.state import begin
from pretrace.step.visits import Budget, plan_visits
from tiny import RING, flat, gpt, plan, read

GLOO = GlooRing(sum_dtype="wire", max_segment_bytes=1 << 20)
N = 6400


def visits(world_size, parked_bytes=None, spill=None, order=GLOO):
    along = paths(order, N, 4, world_size, "all_reduce")
    return plan_visits([(along, 4)], world_size, Budget(parked_bytes, spill))


def test_parking_a_ring_of_64_takes_half_of_the_gradients():
    found = visits(64)
    assert (found.mode, found.again) == ("park", 0)
    assert found.order == tuple(range(63, -1, -1))
    assert found.parked_bytes == pytest.approx(31.5 * N * 4, rel=0.02)


def test_without_memory_63_of_64_ranks_are_played_again():
    assert (visits(64, 0).mode, visits(64, 0).again, visits(64, 0).parked_bytes) == ("two-pass", 63, 0)


def test_two_gradients_of_memory_at_64_ranks_save_about_16_evaluations():
    found = visits(64, parked_bytes=int(2.2 * N * 4))
    # k parking ranks hold k (k + 1) / 2W gradients: 16 hold 2.1
    assert found.mode == "hybrid"
    assert 63 - found.again == pytest.approx(16, abs=1)
    assert found.parked_bytes <= 2.2 * N * 4


def test_a_ring_in_the_other_direction_is_played_upwards():
    ring = NcclRing(sum_dtype="wire", rings=(tuple(range(8)),), chunk_bytes=1 << 20)
    assert visits(8, order=ring).order == tuple(range(8))


def test_a_tree_needs_its_height_in_memory_and_no_second_visit():
    found = visits(64, order=Tree(sum_dtype="wire"))
    assert found.again == 0
    assert found.parked_bytes <= 6 * N * 4


def run(budget, world=6, steps=2, **changes):
    of, model = plan(world_size=world, **changes), gpt()
    state = begin(of, model)
    outcomes = [execute(of, state, read, step=s, budget=budget) for s in range(steps)]
    return flat(model), outcomes[-1]


N_PARAMS = sum(p.numel() for p in gpt().parameters())


def test_park_hybrid_two_pass_and_spill_give_the_same_bits_within_their_budget(tmp_path):
    reference, parked = run(Budget())
    assert parked.evaluations == 6
    for budget in (Budget(0), Budget(N_PARAMS), Budget(N_PARAMS, str(tmp_path)), Budget(0, str(tmp_path))):
        bits, outcome = run(budget)
        assert torch.equal(bits, reference)
        assert outcome.peak_parked_bytes <= budget.parked_bytes
        assert outcome.evaluations == (6 if budget.spill else 11 if budget.parked_bytes == 0 else outcome.evaluations)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_repeat_its_bits_is_found_out():
    class Restless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = gpt(), 0

        def forward(self, tokens):
            self.calls += 1
            return self.inner(tokens) * (1 + 1e-3 * self.calls)

    of, model = plan(world_size=3, reduction__order=RING), Restless()
    with pytest.raises(PretraceError, match="played twice and gave two gradients"):
        execute(of, begin(of, model), read, step=0, budget=Budget(0))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 200))
def test_spilled_pieces_come_back_as_they_were(tmp_path_factory, sizes, limit):
    parking = Parking(limit, str(tmp_path_factory.getbasetemp()))
    pieces = [torch.randn(n).to(torch.bfloat16) for n in sizes]
    tickets = [parking.put(piece, owned=False) for piece in pieces]
    assert parking.live <= limit
    for piece, ticket in reversed(list(zip(pieces, tickets))):
        assert torch.equal(parking.take(ticket), piece)
    parking.close()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PretraceError, match="does not exist"):
        run(Budget(0, str(tmp_path / "absent")))
