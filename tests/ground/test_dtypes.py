import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrace.dtypes import DTYPES, dtype, from_float32, to_float, torch_dtype, ulp, ulp_distance
from pretrace.errors import PretraceError

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=50)


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_sizes_are_those_of_torch(name):
    assert dtype(name).itemsize == torch_dtype(name).itemsize


@given(FLOATS)
def test_rounding_to_bfloat16_is_torchs(values):
    x = np.array(values, np.float32)
    ours = to_float(from_float32(x, "bfloat16"), "bfloat16")
    torchs = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(ours, torchs)


@given(FLOATS)
def test_rounding_to_float16_is_torchs(values):
    x = np.array(values, np.float32)
    np.testing.assert_array_equal(
        to_float(from_float32(x, "float16"), "float16"), torch.from_numpy(x).half().float().numpy()
    )


def test_spacing_of_known_numbers():
    assert ulp(1.0, "float32") == 2.0**-23
    assert ulp(-3.0, "bfloat16") == 2.0**-6
    assert ulp(0.02, "float16") == 2.0**-16  # 1.5e-5: what hides the first updates of a model published in fp16
    assert ulp(0.0, "float16") == 2.0**-24


def test_distance_in_ulps_counts_the_numbers_between():
    one = np.float32(1.0)
    up = np.nextafter(one, np.float32(2))
    assert ulp_distance(np.array([one, 0.0, -1e-45], np.float32), np.array([up, -0.0, 1e-45], np.float32)).tolist() == [
        1,
        0,
        2,
    ]


def test_an_unknown_format_is_named():
    with pytest.raises(PretraceError, match="unknown dtype 'float31'"):
        dtype("float31")


def test_packed_formats_have_no_item_size_but_a_total():
    assert DTYPES["float4_e2m1fn"].size_bytes(3) == 2
    with pytest.raises(PretraceError, match="packs"):
        _ = DTYPES["float4_e2m1fn"].itemsize
