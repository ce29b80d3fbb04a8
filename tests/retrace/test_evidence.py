import numpy as np
import pytest

from pretrace.dtypes import from_float32
from pretrace.errors import PretraceError
from pretrace.provenance import START
from pretrace.retrace.evidence import products
from pretrace.retrace.series import Segment

SEGMENTS = (Segment("a", 0, 70_000), Segment("b", 70_000, 70_010))


def write(folder, name, values, dtype):
    np.save(folder / name, from_float32(np.float32(values), dtype))
    return folder / f"{name}.npy"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_are_those_of_the_differences_from_the_start(tmp_path, dtype):
    rng = np.random.default_rng(0)
    start, x, y = rng.normal(size=(3, 70_010))
    paths = [write(tmp_path, name, values, dtype) for name, values in (("s", start), ("x", x), ("y", y))]
    whole, by_tensor = products(paths[0], {"x": paths[1], "y": paths[2]}, SEGMENTS, dtype)

    def seen(values):
        stored = from_float32(np.float32(values), dtype)
        wide = stored.astype(np.uint32) << 16 if dtype == "bfloat16" else stored
        return (wide.view(np.float32) if dtype == "bfloat16" else wide).astype(np.float64)

    rows = np.stack([seen(start), seen(x) - seen(start), seen(y) - seen(start)])
    np.testing.assert_allclose(whole.products, rows @ rows.T, rtol=1e-12, atol=1e-8)
    tail = rows[:, 70_000:]
    np.testing.assert_allclose(by_tensor["b"].products, tail @ tail.T, rtol=1e-12, atol=1e-12)
    assert whole.names == (START, "x", "y")
    assert whole.numel == 70_010


def test_a_run_of_another_model_is_refused(tmp_path):
    start, short = write(tmp_path, "s", np.zeros(70_010), "float32"), write(tmp_path, "x", np.zeros(9), "float32")
    with pytest.raises(PretraceError, match="9 parameters where the reference has 70,010"):
        products(start, {"x": short}, SEGMENTS, "float32")
