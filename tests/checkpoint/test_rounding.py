"""What is computed piece by piece is what is computed at once."""

import numpy as np
import pytest

from pretrace.checkpoint import rounding
from pretrace.checkpoint.rounding import computed, rounded
from pretrace.dtypes import to_float


@pytest.mark.parametrize("made", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("scale", "plus"), [(1.0, 0.0), (0.3, 0.0), (1.0, -1.0)])
def test_pieces_give_the_bits_of_the_whole(made, scale, plus, monkeypatch):
    monkeypatch.setattr(rounding, "_PART", 7)
    bits = np.random.default_rng(0).integers(0, 1 << 16, 100).astype(np.uint16)
    with np.errstate(all="ignore"):
        wide = to_float(bits, "bfloat16").astype(np.float64)
        wanted = rounded(wide if (scale, plus) == (1.0, 0.0) else wide * scale + plus, made)
    assert computed(bits, "bfloat16", made, scale, plus).tobytes() == wanted.tobytes()


def test_a_zero_keeps_its_sign_where_nothing_is_computed():
    assert np.signbit(computed(np.array([-0.0], np.float32), "float32", "float64", 1.0, 0.0))[0]


def test_a_block_may_be_computed_in_place():
    block = np.arange(5, dtype=np.float32)
    assert computed(block, "float32", "float32", 2.0, 1.0, block) is block
    assert block.tolist() == [1, 3, 5, 7, 9]
