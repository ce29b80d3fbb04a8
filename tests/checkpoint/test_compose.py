"""Two links as one, against copying element by element through the tensor between them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.checkpoint.compose import compose
from pretrace.checkpoint.links import Link, c_strides, normal, plain_copy


def of_layer(k, layers=3, rows=2, width=4, source="layer"):
    """Layer k of an array [rows, layers, width]: what makes it, from a tensor [rows, width] of its own."""
    return Link(f"{source}{k}", (rows, width), (layers * width, 1), (width, 1), k * width, 0)


def transposed(k, layers=3, rows=2, width=4):
    """The same from a tensor [width, rows]."""
    return Link(f"layer{k}", (rows, width), (layers * width, 1), (1, rows), k * width, 0)


def reading(shape, at, sizes):
    """A box of the middle tensor, as a tensor of its own."""
    strides = c_strides(shape)
    return normal(Link("middle", sizes, c_strides(sizes), strides, 0, sum(a * s for a, s in zip(at, strides))))


def test_a_layer_of_a_stack_on_an_inner_axis_is_read_from_that_layer_alone():
    stack = tuple(transposed(k) for k in range(3))
    (link,) = compose(reading((2, 3, 4), (0, 1, 0), (2, 1, 4)), stack)
    assert link == Link("layer1", (2, 4), (4, 1), (1, 2))


def test_rows_of_a_layer_are_a_box_of_it():
    stack = tuple(of_layer(k) for k in range(3))
    (link,) = compose(reading((2, 3, 4), (1, 2, 0), (1, 1, 4)), stack)
    assert link == Link("layer2", (4,), (1,), (1,), 0, 4)


def test_a_box_over_two_layers_is_read_from_both():
    stack = tuple(of_layer(k) for k in range(3))
    links = compose(reading((2, 3, 4), (0, 1, 0), (2, 2, 4)), stack)
    assert [link.source for link in links] == ["layer1", "layer2"]


@given(st.data())
def test_what_is_composed_reads_what_two_copies_read(data):
    shape = data.draw(
        st.tuples(st.integers(1, 4), st.sampled_from([2, 4, 6]), st.integers(1, 5), st.sampled_from([2, 4]))
    )
    axis = data.draw(st.integers(0, 3))
    rng = np.random.default_rng(0)
    others = tuple(n for k, n in enumerate(shape) if k != axis)
    order = data.draw(st.permutations(range(3)))  # of the axes of a layer, as it is stored
    stored = {f"layer{k}": rng.integers(0, 1 << 30, int(np.prod(others))) for k in range(shape[axis])}
    strides = c_strides(shape)
    there = dict(zip(order, c_strides(others[a] for a in order)))
    inner = tuple(
        normal(Link(f"layer{k}", others, tuple(s for a, s in enumerate(strides) if a != axis),
                    tuple(there[a] for a in range(3)), k * strides[axis], 0)) for k in range(shape[axis])
    )  # fmt: skip
    middle = np.empty(int(np.prod(shape)), np.int64)
    for link in inner:
        plain_copy(link, stored[link.source], middle)
    at = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    sizes = tuple(data.draw(st.integers(1, n - a)) for n, a in zip(shape, at))
    turned = data.draw(st.permutations(range(4)))
    to = dict(zip(turned, c_strides(sizes[a] for a in turned)))
    outer = normal(Link("middle", sizes, tuple(to[a] for a in range(4)), strides, 0,
                        sum(a * s for a, s in zip(at, strides))))  # fmt: skip
    wanted = np.empty(outer.numel, np.int64)
    plain_copy(outer, middle, wanted)
    links = compose(outer, inner)
    if links is None:
        return  # no box: the plain way reads it
    made = np.full(outer.numel, -1)
    for link in links:
        plain_copy(link, stored[link.source], made)
    assert (made == wanted).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_whole_layers_and_single_indices_of_an_axis_always_compose(axis):
    shape = (4, 4, 4)
    strides = c_strides(shape)
    rest = tuple(s for a, s in enumerate(strides) if a != axis)
    inner = tuple(normal(Link(f"layer{k}", (4, 4), rest, (1, 4), k * strides[axis], 0)) for k in range(4))
    for k in range(4):
        box = tuple(1 if a == axis else 4 for a in range(3))
        (link,) = compose(reading(shape, tuple(k if a == axis else 0 for a in range(3)), box), inner)
        assert (link.source, link.numel) == (f"layer{k}", 16)
