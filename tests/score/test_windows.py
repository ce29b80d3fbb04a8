import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.score.windows import disjoint, inputs_and_labels, rolling

IGNORE = -100


@given(n=st.integers(0, 60), length=st.integers(1, 16), stride=st.integers(1, 16), prefix=st.sampled_from([None, 7]))
def test_every_token_is_scored_exactly_once(n, length, stride, prefix):
    tokens = list(range(100, 100 + n))
    for windows in (rolling(n, length, stride=min(stride, length), prefix=prefix), disjoint(n, length, prefix=prefix)):
        scored = []
        for window in windows:
            inputs, labels = inputs_and_labels(tokens, window, IGNORE)
            assert len(inputs) == len(labels) <= length
            scored += [y for y in labels if y != IGNORE]
        assert scored == (tokens if prefix is not None else tokens[1:])


def test_disjoint_windows_share_one_token_of_context():
    tokens = list(range(10))
    cut = [inputs_and_labels(tokens, w, IGNORE) for w in disjoint(10, 4, prefix=None)]
    assert cut == [([0, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8]), ([8], [9])]


def test_a_prefix_predicts_the_first_token():
    assert inputs_and_labels([5, 6], next(disjoint(2, 4, prefix=0)), IGNORE) == ([0, 5], [5, 6])


def test_a_stride_longer_than_the_window_is_refused():
    with pytest.raises(PretraceError, match="does not fit"):
        list(rolling(10, 4, stride=5, prefix=None))
