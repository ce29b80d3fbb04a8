"""Links multiplied out read the same bits as the views that stand on each other."""

import numpy as np
import pytest

from convert_lab import READ, SPECS, spec_for, stored, weights
from pretrace.checkpoint import canonical, read_all, relabel, with_rows
from pretrace.checkpoint.compose import compose
from pretrace.checkpoint.links import Link
from pretrace.convert.cast import CastView
from pretrace.convert.direct import direct

PAIRS = [(a, b) for a in READ for b in READ if spec_for(a) == spec_for(b)]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=lambda t: t.name)
def test_every_pair_of_layouts_reads_the_same_bits_directly(a, b):
    spec = spec_for(a)
    source = stored(spec, a, weights(spec))
    theirs = relabel(CastView(canonical(source, spec, table=a), "bfloat16"), b, spec)
    missed = set()
    for name in theirs.names():
        made = direct(theirs, name)
        if made is None:
            missed.add(name.split(".")[-2])
            continue
        held = {n: read_all(source, n).reshape(-1) for n in made.stored}
        wanted = read_all(theirs, name).reshape(-1)
        half = len(wanted) // 3
        got = np.concatenate([made.fill(held, 0, half), made.fill(held, half, len(wanted))])
        assert (got == wanted).all(), name
    # MaxText's query is scaled and its key is not: fused, they are read through the views.
    mixed = a.name.startswith("maxtext llama") and b.grouped
    assert missed == ({"query_key_value"} if mixed else set())


def test_rows_of_padding_stay_zero():
    spec = SPECS["gpt2"]
    table = next(t for t in READ if t.name == "hf gpt2")
    source = stored(spec, table, weights(spec))
    theirs = relabel(with_rows(canonical(source, spec), 40), table, spec)
    made = direct(theirs, "transformer.wte.weight")
    assert made.sparse
    held = {n: read_all(source, n).reshape(-1) for n in made.stored}
    assert (made.fill(held, 0, 40 * 32) == read_all(theirs, "transformer.wte.weight").reshape(-1)).all()


def test_a_transpose_of_a_transpose_is_the_tensor_itself():
    turn = Link("", (3, 2), (2, 1), (1, 3))
    assert compose(turn, (Link("s", (2, 3), (3, 1), (1, 2)),)) == (Link("s", (6,), (1,), (1,)),)
