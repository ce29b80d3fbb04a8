from hypothesis import given
from hypothesis import strategies as st

from pretrace.step.orders import Path
from pretrace.step.rounds import MOST, rounds


def buckets_of(sizes):
    found, at = [], 0
    for size in sizes:
        found.append((at, at + size))
        at += size
    return found


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 900), st.integers(1, 16))
def test_every_element_is_exchanged_once_along_its_own_path(sizes, budget, waiting):
    buckets = buckets_of(sizes)
    along = [[Path(0, (n + 1) // 2, (0, 1)), *([Path((n + 1) // 2, n, (1, 0))] if n > 1 else [])] for n in sizes]
    found = rounds(buckets, along, waiting, budget)
    assert len(found) <= max(MOST, 1) + len(sizes)
    seen = []
    for cut in (cut for cuts in found for cut in cuts):
        assert [p.start for p in cut.along] == [0, *(p.stop for p in cut.along[:-1])]
        assert cut.along[-1].stop == cut.stop - cut.start
        seen += [(cut.start + i, p.nesting) for p in cut.along for i in range(p.start, p.stop)]
    whole = [(a + i, p.nesting) for (a, _), paths in zip(buckets, along) for p in paths for i in range(p.start, p.stop)]
    assert seen == whole


def test_without_a_budget_one_round_takes_the_buckets_as_they_are():
    along = [[Path(0, 3, (0, 1))], [Path(0, 6, (0, 1))]]
    assert [[(c.start, c.stop) for c in cuts] for cuts in rounds([(0, 3), (3, 9)], along, 8, None)] == [
        [(0, 3), (3, 9)]
    ]
