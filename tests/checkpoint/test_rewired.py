"""What one view computes and the next undoes is not computed: both would round."""

import math

import numpy as np
import pytest

from pretrace.checkpoint.arrays import ArraysView
from pretrace.checkpoint.links import Link, whole
from pretrace.checkpoint.rewired import RewiredView, Wired
from pretrace.checkpoint.united import United
from pretrace.checkpoint.view import TensorInfo

STORED = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
TURNED = (6, 4), (4, 1), (1, 6)  # sizes, target strides, source strides of a transpose


def scaled(base, source, scale, plus=0.0):
    """A view of one tensor `made`: the transpose of `source`, times `scale` and plus `plus`."""
    rows = base.info(source).shape[::-1]
    link = Link(source, *TURNED) if rows == (6, 4) else Link(source, (4, 6), (6, 1), (1, 4))
    return RewiredView(base, {"made": Wired(TensorInfo("made", "float32", rows, ""), (link,), scale=scale, plus=plus)})


@pytest.mark.parametrize("between", [lambda view: view, lambda view: United({"": view, "other:": view})])
@pytest.mark.parametrize(("scale", "plus"), [(math.sqrt(8), 0.0), (1.0, 1.0), (math.sqrt(2), 0.5)])
def test_a_move_and_its_inverse_give_the_stored_bits(between, scale, plus):
    once = scaled(ArraysView({"x": STORED}), "x", scale, plus)
    back = scaled(between(once), "made", 1 / scale, -plus / scale)
    assert back.undoes("made")
    assert back.read("made", 0, 24).tobytes() == STORED.tobytes()
    twice = (once.read("made", 0, 24).astype(np.float64) / scale - plus / scale).astype(np.float32).reshape(6, 4).T
    assert (twice != STORED).any()  # by way of the values in between it would not be


def test_another_factor_is_computed():
    once = scaled(ArraysView({"x": STORED}), "x", 3.0)
    other = scaled(once, "made", 0.5)
    assert not other.undoes("made")
    assert np.array_equal(other.read("made", 0, 24), (np.float32(3) * STORED * np.float32(0.5)).ravel())


def test_tensors_of_two_views_are_read_from_both():
    both = United({"a:": ArraysView({"x": STORED}), "b:": ArraysView({"x": -STORED})})
    assert both.one_below(["a:x", "b:x"]) is None
    assert both.one_below(["b:x"])[1] == {"b:x": "x"}
    links = (whole("a:x", (4, 6)), Link("b:x", (24,), (1,), (1,), target_offset=24))
    joined = RewiredView(both, {"made": Wired(TensorInfo("made", "float32", (8, 6), ""), links)})
    assert joined.read("made", 0, 48).tobytes() == STORED.tobytes() + (-STORED).tobytes()
