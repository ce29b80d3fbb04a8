import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrace.score.requests import PADDING, Request, allowed, batches, packed, packs, window_request
from pretrace.score.windows import rolling

ENDINGS = [Request((5, 6, 7), (8, 9)), Request((5, 6, 7), (4,)), Request((1,), (2, 3)), Request((5, 6, 7), (3, 2, 1))]
IDS = st.integers(1, 4)
REQUESTS = st.lists(
    st.builds(Request, st.lists(IDS, min_size=1, max_size=3).map(tuple), st.lists(IDS, min_size=1, max_size=4).map(tuple)),
    min_size=1, max_size=12,
)  # fmt: skip


def test_a_shared_context_is_computed_once():
    first, second = packs(ENDINGS, 100)
    assert (first.context, first.owners, first.length) == ((5, 6, 7), (0, 1, 3), 3 + 1 + 0 + 2)
    assert (second.context, second.owners, second.length) == ((1,), (2,), 2)


def test_each_label_is_predicted_from_the_token_before_it():
    batch = packed(packs(ENDINGS, 100)[:1])
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 3, 2]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 3, 4]]
    assert batch.labels.tolist() == [8, 9, 4, 3, 2, 1]
    assert batch.looked_at.tolist() == [2, 3, 2, 2, 4, 5]
    assert batch.parts == ((0, 0, 2), (1, 2, 3), (3, 3, 6))


def test_an_ending_sees_the_context_and_itself():
    mask = allowed(np.array([[0, 0, 1, 2, 2, PADDING]]))[0, 0].astype(int)
    assert mask.tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_windows_of_a_text_are_the_harnesss():
    from itertools import pairwise

    text, length = list(range(10, 21)), 4
    requests = [window_request(text, w) for w in rolling(len(text), length, stride=length, prefix=0)]
    # lm_eval.utils.get_rolling_token_windows(text, 0, 4, 1), then make_disjoint_window
    assert [(r.context, r.continuation) for r in requests] == [
        ((0,), (10, 11, 12, 13)),
        ((13,), (14, 15, 16, 17)),
        ((16, 17), (18, 19, 20)),
    ]
    assert all(a.continuation[-1] < b.continuation[0] for a, b in pairwise(requests))


@given(REQUESTS, st.integers(1, 20), st.booleans())
def test_every_request_is_scored_once_whatever_the_batches(requests, batch_tokens, share):
    seen = []
    for batch in batches(packs(requests, batch_tokens, share=share), batch_tokens):
        arrays = packed(batch)
        assert len(batch) == 1 or arrays.tokens.size <= batch_tokens
        for owner, start, stop in arrays.parts:
            assert tuple(arrays.labels[start:stop]) == requests[owner].continuation
            seen.append(owner)
    assert sorted(seen) == list(range(len(requests)))
