import io

import numpy as np
import pytest

from pretrace.retrace.runs import write_vector


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint16"])
def test_a_vector_is_written_as_numpy_writes_it(dtype):
    values = np.arange(1000).astype(dtype)
    ours, theirs = io.BytesIO(), io.BytesIO()
    write_vector(ours, values)
    np.save(theirs, values)
    assert ours.getvalue() == theirs.getvalue()


def test_a_full_disk_is_called_by_its_name():
    # /dev/full takes no byte; np.save would say "N requested and M written" without an error number.
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb", buffering=0) as file:
        write_vector(file, np.zeros(100_000, np.float32))
