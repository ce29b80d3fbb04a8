"""Links multiplied out read the same bits as the views that stand on each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from convert_lab import READ, SPECS, spec_for, stored, weights
from layouts import ADAM, adam_state, stateful, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    layout_of,
    open_state,
    plain_options,
    read_all,
    relabel,
    with_rows,
    write_layout,
)
from pretrace.checkpoint.compose import compose
from pretrace.checkpoint.links import Link
from pretrace.convert import units
from pretrace.convert.cast import CastView
from pretrace.convert.direct import direct, hold
from pretrace.convert.units import work_of

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
        held = {(k, n): read_all(source, n).reshape(-1) for k, n in made.stored}
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
    held = {(k, n): read_all(source, n).reshape(-1) for k, n in made.stored}
    assert (made.fill(held, 0, 40 * 32) == read_all(theirs, "transformer.wte.weight").reshape(-1)).all()


def test_a_transpose_of_a_transpose_is_the_tensor_itself():
    turn = Link("", (3, 2), (2, 1), (1, 3))
    assert compose(turn, (Link("s", (2, 3), (3, 1), (1, 2)),)) == (Link("s", (6,), (1,), (1,)),)


def test_moments_of_one_name_in_several_views_are_held_apart():
    """ZeRO-1 keeps masters, both moments and addends of biases in views with the same names, of two dtypes."""
    spec = tiny_spec("gpt_neox")
    halves = {name: array.astype(np.float16) for name, array in tiny_weights(spec).items()}
    view = ArraysView(halves | adam_state(spec), metadata={"step": 5, "adam": ADAM})
    layout = layout_of("neox", view, spec, plain_options(view, tensor_parallel=2))
    work = work_of(layout)
    with ThreadPoolExecutor(1) as pool:
        for unit in (unit for unit in work.units if unit.kind == "held"):
            held = hold({n: work.directs[n] for n in unit.tensors}, pool)
            for name in unit.tensors:
                wanted = read_all(layout.sources, name).reshape(-1)
                assert (work.directs[name].fill(held, 0, wanted.size) == wanted).all(), name


@pytest.mark.parametrize("scan_axis", [0, 1])
@pytest.mark.parametrize(("family", "fused_qkv"), [("llama", True), ("gpt2", True), ("gpt2", False)])
def test_a_layer_of_a_stack_is_read_directly_from_that_layer_alone(family, fused_qkv, scan_axis):
    view = stateful(spec := tiny_spec(family))
    options = plain_options(view, scan_axis=scan_axis, fused_qkv=fused_qkv, ocdbt=False, shard_bytes=4096)
    layout = layout_of("maxtext", view, spec, options)
    work = work_of(layout)
    parts = [part for of in layout.parts.values() for part in of]
    assert {unit.kind for unit in work.units} == {"held"}
    for part in parts:
        made = work.directs[part]
        assert len(made.stored) == (3 if "qkv" in part else 1)
        held = {key: read_all(made.base, key[1]).reshape(-1) for key in made.stored}
        assert (made.fill(held, 0, made.info.numel) == read_all(layout.sources, part).reshape(-1)).all(), part


def test_a_large_stack_is_read_run_by_run_and_not_held_for_its_layers(monkeypatch):
    """Three layers in one stored tensor: three times a target tensor. Held below the limit, not above; the head always."""
    spec = SPECS["llama"]
    table = next(t for t in READ if t.name == "maxtext llama scanned on axis 1")
    view = canonical(stored(spec, table, weights(spec)), spec, table=table)
    layout = layout_of("hf", view, spec, plain_options(view))
    for limit, expected in ((64 << 20, "held"), (0, "plain")):
        monkeypatch.setattr(units, "_STACK_BYTES", limit)
        kind_of = {name: unit.kind for unit in work_of(layout).units for name in unit.tensors}
        assert kind_of["model.layers.1.mlp.up_proj.weight"] == expected
        assert kind_of["lm_head.weight"] == "held"


def test_a_database_reads_what_lies_whole_in_a_file_chunk_by_chunk(tmp_path):
    view = ArraysView(tiny_weights(spec := tiny_spec("llama")))
    write_layout(layout_of("hf", view, spec, plain_options(view)), tmp_path)
    with open_state(tmp_path) as stored:
        ours = canonical(stored, spec)
        work = work_of(layout_of("orbax", ours, spec, plain_options(ours)))
        lying = {name for unit in work.units if unit.kind == "plain" for name in unit.tensors}
    assert set(view.names()) <= lying
    assert work.held_bytes <= 8  # the step
