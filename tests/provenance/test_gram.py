"""The fast statistics on inner products equal the plain ones on whole vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.provenance import START, centred, gram_of, plain, published, update_of

vectors = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(6, 40)))
NAMES = (START, "reference", "a", "b", "d1", "d2")


@given(table=vectors, pieces=st.integers(1, 9))
def test_statistics_on_products_equal_those_on_vectors(table, pieces):
    gram = gram_of(NAMES, np.array_split(table, pieces, axis=1))
    _, ref, a, b, d1, d2 = table
    mean = (d1 + d2) / 2
    w = {name: gram.one(name) for name in NAMES}
    middle = gram.mean(["d1", "d2"])
    assert centred.score(gram, w["reference"], w["a"], middle) == pytest.approx(plain.score(ref, a, mean), abs=1e-12)
    assert centred.share(gram, w["reference"], w["a"], middle) == pytest.approx(plain.share(ref, a, mean), abs=1e-12)
    assert centred.duel(gram, w["reference"], w["a"], w["b"]) == pytest.approx(plain.duel(ref, a, b), abs=1e-12)
    assert gram.distance(w["a"], w["b"]) == pytest.approx(np.linalg.norm(a - b), abs=1e-12)


@given(table=vectors)
def test_p_cos_of_parameters_equals_the_cosine_of_whole_states(table):
    gram = gram_of(NAMES, [table])
    start, ref, a = table[0], table[1], table[2]
    cosine = (start + ref) @ (start + a) / np.linalg.norm(start + ref) / np.linalg.norm(start + a)
    found = centred.one_minus_p_cos(gram, gram.one("reference"), gram.one("a"))
    assert found == pytest.approx(1 - cosine, abs=1e-12)


def test_one_minus_p_cos_keeps_its_digits_where_the_cosine_rounds_to_one():
    start, small = np.array([1.0, 0.0]), np.array([0.0, 1e-7])
    gram = gram_of((START, "u", "v"), [np.stack([start, small, 0 * small])])
    assert centred.one_minus_p_cos(gram, gram.one("u"), gram.one("v")) == pytest.approx(5e-15, rel=1e-6)


def test_the_blocks_may_be_of_any_size():
    table = np.random.default_rng(0).normal(size=(6, 100)).astype(np.float32)
    whole = gram_of(NAMES, [table])
    split = gram_of(NAMES, [table[:, :1], table[:, 1:37], table[:, 37:]])
    np.testing.assert_allclose(split.products, whole.products, rtol=1e-14, atol=1e-13)
    assert split.numel == 100


def test_a_projection_on_nothing_changes_nothing():
    zero, ref, a = np.zeros(2), np.array([1.0, 0.0]), np.array([1.0, 1.0])
    gram = gram_of(("m", "r", "a"), [np.stack([zero, ref, a])])
    assert centred.score(gram, gram.one("r"), gram.one("a"), gram.one("m")) == pytest.approx(2**-0.5)
    assert plain.score(ref, a, zero) == pytest.approx(2**-0.5)


def test_equal_hypotheses_have_no_duel():
    a = np.array([1.0, 2.0])
    gram = gram_of(("r", "a", "b"), [np.stack([a, a, a])])
    assert np.isnan(centred.duel(gram, gram.one("r"), gram.one("a"), gram.one("b")))
    assert np.isnan(plain.duel(a, a, a))


def test_both_sides_are_rounded_like_the_published_files():
    start = published(np.float32([0.02]), "float16")
    moved = np.float32([0.02 + 1e-5])  # the fp16 spacing at 0.02 is 1.5e-5
    assert start[0] == np.float64(np.float16(0.02))
    assert update_of(moved, start, "float16")[0] in (0.0, 2.0**-16)
    assert update_of(np.float32([0.5]), published(np.float32([0.25]), "bfloat16"), "bfloat16")[0] == 0.25
