"""Zero regions: the geometry by hand, and that trained-looking weights have none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace import audit
from pretrace.audit.zeros import Region, nonzero, on_pages, regions, runs
from pretrace.checkpoint import ArraysView, open_state
from pretrace.compare.statistics import statistics


def found_in(array, **options):
    view = ArraysView({"w": np.ascontiguousarray(array)}, **options)
    (tensor,) = statistics(view).tensors
    return regions(view, view.info("w"), tensor.zeros_by_block)


def weights(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32) + np.float32(10)


def test_columns_from_a_quarter_on():
    w = weights(8, 64)
    w[:, 16:] = 0
    assert found_in(w) == [Region(1, 16, 64, 64)]
    assert Region(1, 16, 64, 64).parts == (1, 3, 4)


def test_rows_in_the_middle():
    w = weights(12, 5)
    w[4:8] = -0.0
    assert found_in(w) == [Region(0, 4, 8, 12)]
    assert Region(0, 4, 8, 12).parts == (1, 1, 3)


def test_an_inner_axis_of_four():
    w = weights(4, 3, 8, 2)
    w[:, :, 6:] = 0
    assert found_in(w) == [Region(2, 6, 8, 8)]


def test_a_region_without_equal_parts_has_none():
    assert Region(0, 101, 103, 1009).parts is None


def test_a_whole_tensor():
    assert found_in(np.zeros((4, 6), np.float32)) == [Region(0, 0, 4, 4)]


def test_a_hole_across_blocks_of_the_flattened_tensor():
    w = weights(300, 700)
    w.reshape(-1)[60_000:140_000] = 0
    (rows,) = (r for r in found_in(w))
    assert (rows.axis, rows.start, rows.stop) == (0, 86, 200)  # whole rows are said as rows
    narrow = weights(2, 105_000)
    narrow.reshape(-1)[60_000:80_000] = 0
    assert found_in(narrow) == [Region(-1, 60_000, 80_000, 210_000)]


def test_a_hole_knows_the_disk_pages_it_lies_on(tmp_path):
    from safetensors.numpy import save_file

    w = weights(2, 20_000)
    save_file({"w": w}, tmp_path / "model.safetensors")
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[16_384 : 16_384 + 8_192] = bytes(8_192)
    (tmp_path / "model.safetensors").write_bytes(data)
    view = open_state(tmp_path)
    (tensor,) = statistics(view).tensors
    (region,) = regions(view, view.info("w"), tensor.zeros_by_block)
    assert region.axis == -1
    assert region.stop - region.start == 2_048
    assert on_pages(view, region, view.info("w")) == 4_096
    (finding,) = [f for f in audit.checkpoint(tmp_path).findings if f.severity == "error"]
    assert "aligned to pages of 4096 bytes" in finding.what


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_zeros_of_both_signs_in_packed_bits(dtype):
    bits = {"bfloat16": np.uint16([0, 0x8000, 1]), "float8_e4m3fn": np.uint8([0, 0x80, 1])}[dtype]
    assert nonzero(bits, dtype).tolist() == [False, False, True]


@given(st.lists(st.booleans(), max_size=40))
def test_runs_cover_exactly_what_is_true(mask):
    array = np.array(mask, dtype=bool)
    covered = np.zeros(array.size, dtype=bool)
    for start, stop in runs(array):
        covered[start:stop] = True
    assert np.array_equal(covered, array)


@given(
    rows=st.integers(4, 40),
    columns=st.integers(4, 40),
    count=st.sampled_from([2, 4, 8]),
    axis=st.integers(0, 1),
    data=st.data(),
)
def test_any_lost_equal_slices_are_found(rows, columns, count, axis, data):
    shape = [rows, columns]
    shape[axis] *= count
    first = data.draw(st.integers(0, count - 1))
    w = weights(*shape)
    size = shape[axis] // count
    lost = slice(first * size, shape[axis])
    w[(lost, slice(None)) if axis == 0 else (slice(None), lost)] = 0
    if first == 0:
        assert found_in(w)[0].share == 1
    else:
        (region,) = found_in(w)
        assert (region.axis, region.start, region.stop) == (axis, first * size, shape[axis])
        low, high, of = region.parts
        assert (low / of, (high + 1) / of) == (first / count, 1)
