"""Zips and pickles that are planned without torch, read by torch, by zipfile and by our own reader."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layouts import covers
from pretrace.checkpoint import ArraysView
from pretrace.checkpoint.fill import fill
from pretrace.checkpoint.pickle_writer import Call, pickled, size
from pretrace.checkpoint.pickles import unpickle
from pretrace.checkpoint.sources import MemoryFile
from pretrace.checkpoint.torch_file import open_torch
from pretrace.checkpoint.torch_zip import Run, Storage, Storages, torch_file
from pretrace.checkpoint.view import TensorInfo, View

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_data_comes_back_from_python_and_from_our_own_machine(value):
    assert pickle.loads(pickled(value)) == value
    assert unpickle(pickled(value), "test").value == value


def written(file, sources):
    out = io.BytesIO()
    fill(out, file, sources, lambda n: None)
    assert len(out.getvalue()) == file.size_bytes
    return out.getvalue()


WORDS = np.arange(6, dtype=np.uint16)
SOURCES = ArraysView({"a": np.arange(5, dtype=np.float32), "b": WORDS.reshape(2, 3)}, dtypes={"b": "bfloat16"})


def example():
    storages = Storages.none(SOURCES)
    tied = storages.tensor("a")
    value = {"m": {"a": tied, "again": tied, "b": storages.tensor("b")}, "step": storages.scalar(7), "s": size((2, 3))}
    return torch_file("x.pt", value, storages)


def test_torch_loads_it_with_weights_only_and_tied_names_share_their_storage():
    got = torch.load(io.BytesIO(written(example(), SOURCES)), weights_only=True)
    assert got["m"]["a"].tolist() == [0, 1, 2, 3, 4]
    assert got["m"]["a"].data_ptr() == got["m"]["again"].data_ptr()
    assert got["m"]["b"].view(torch.uint16).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (got["step"].item(), got["step"].dtype, got["s"]) == (7, torch.float32, torch.Size([2, 3]))


def test_every_crc_is_right_and_storages_start_at_multiples_of_64():
    data = written(example(), SOURCES)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
    assert covers(example())
    file = open_torch(MemoryFile(data))
    assert file.findings == ()
    assert {at % 64 for at, _ in file.storages.values()} == {0}
    for key in file.storages:
        file.zip.check(f"archive/data/{key}")


def test_a_storage_of_several_runs_and_padding_is_one_flat_tensor():
    storages = Storages.none(SOURCES)
    flat = storages.over((4,), Storage("float32", (Run("a", 3, 5), Run("a", 0, 1)), literal=bytes(4)))
    got = torch.load(io.BytesIO(written(torch_file("x.pt", [flat], storages), SOURCES)), weights_only=True)
    assert got[0].tolist() == [3, 4, 0, 0]


def test_what_runs_code_is_not_written_by_accident():
    with pytest.raises(TypeError):
        pickled(object())
    assert unpickle(pickled(Call("os", "system", ("true",))), "test").refused  # our own reader would say so


class Zeros(View):
    """A tensor of zeros that takes no memory."""

    def __init__(self, n):
        super().__init__({name: TensorInfo(name, "uint8", (n,), "nowhere") for name in ("big", "small")})

    def _read(self, info, start, stop, block):
        block[...] = 0


@pytest.mark.slow
def test_storages_beyond_4_gib_stand_in_zip64_records(tmp_path):
    sources = Zeros((1 << 32) + 7)
    storages = Storages.none(sources)
    file = torch_file("x.pt", {"big": storages.tensor("big"), "after": storages.scalar(3)}, storages)
    with open(tmp_path / "x.pt", "w+b") as out:
        fill(out, file, sources, lambda n: None)
    got = torch.load(tmp_path / "x.pt", weights_only=True, mmap=True)
    assert (got["big"].numel(), got["after"].item()) == ((1 << 32) + 7, 3)
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.getinfo("archive/data/0").file_size == (1 << 32) + 7
