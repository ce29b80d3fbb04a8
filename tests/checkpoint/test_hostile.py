"""Files that lie, in every format: an error of ours or a view, never anything else, and never more memory than they weigh."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save

from assets import checkpoint_cases
from pretrace.checkpoint import open_state, read_all, survey
from pretrace.errors import PretraceError

# Runs in a process of its own with 1 GiB of room: a mutated file must not make the reader take more, or crash it.
FUZZ = """
import resource, shutil, sys
from pathlib import Path
import numpy as np
import pretrace.checkpoint as checkpoint
from pretrace.errors import PretraceError
source, work, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
rng = np.random.default_rng(int(sys.argv[4]))
files = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
read = refused = 0
for _ in range(rounds):
    shutil.rmtree(work, ignore_errors=True); shutil.copytree(source, work)
    target = work / files[rng.integers(len(files))]
    data = bytearray(target.read_bytes())
    kind = rng.integers(4)
    at = int(rng.integers(len(data))) if rng.integers(2) or len(data) < 600 else int(rng.integers(600))  # headers stand in front
    if kind == 0: data[at] ^= 1 << int(rng.integers(8))
    if kind == 1: del data[at:]
    if kind == 2: data[at:at] = rng.bytes(int(rng.integers(1, 40)))
    if kind == 3: data[at:at + 8] = b"\\xff" * 8
    target.write_bytes(data)
    try:
        with checkpoint.survey(work).view or checkpoint.ArraysView({}) as view:
            for name in view.names():
                view.read(name, 0, min(view.info(name).numel, 100_000))
        read += 1
    except PretraceError:
        refused += 1
print(read, refused)
"""


def small(kind, folder):
    """A small sound checkpoint of one kind."""
    weights = {"layers.0.w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, np.float16)}
    tensors = {name: torch.from_numpy(w) for name, w in weights.items()}
    folder.mkdir()
    if kind == "safetensors":
        (folder / "x.safetensors").write_bytes(save({"b": weights["b"]}, {"format": "pt"}))
        (folder / "y.safetensors").write_bytes(save({"layers.0.w": weights["layers.0.w"]}))
        weight_map = {"weight_map": {"b": "x.safetensors", "layers.0.w": "y.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map))
    elif kind in ("zip", "legacy"):
        torch.save(tensors | {"iter_num": 3}, folder / "ckpt.pt", _use_new_zipfile_serialization=kind == "zip")
    elif kind == "dcp":
        dcp.save(tensors | {"step": 1}, checkpoint_id=folder)
    elif kind == "zarr":
        for name, w in weights.items():
            (folder / name).mkdir()
            header = {"zarr_format": 2, "shape": w.shape, "chunks": w.shape, "dtype": w.dtype.str, "compressor": None}
            (folder / name / ".zarray").write_text(json.dumps(header))
            (folder / name / ".".join("0" * w.ndim)).write_bytes(w.tobytes())
    else:
        shutil.copytree(checkpoint_cases() / kind, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "dcp", "zarr", "good_llmc", "good_orbax"])
def test_mutated_files_are_read_or_refused_within_their_memory(kind, tmp_path):
    small(kind, tmp_path / "sound")
    command = [sys.executable, "-c", FUZZ, str(tmp_path / "sound"), str(tmp_path / "work"), "60", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    read, refused = map(int, done.stdout.split())
    assert read + refused == 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "dcp", "zarr", "good_llmc", "good_neox_tp2"])
def test_many_mutated_files_are_read_or_refused(kind, seed, tmp_path):
    small(kind, tmp_path / "sound")
    command = [sys.executable, "-c", FUZZ, str(tmp_path / "sound"), str(tmp_path / "work"), "300", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


def codes(path):
    return [f.code for f in survey(path, deep=True).findings]


def test_a_device_a_pipe_and_a_circle_of_links_under_a_weights_name_are_not_read(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(save({"a": np.ones(2, np.float32)}))
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "zero.safetensors").symlink_to("/dev/zero")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "up").symlink_to(tmp_path)
    assert codes(tmp_path) == []
    for name in ("pipe.safetensors", "zero.safetensors", "loop.safetensors"):
        with pytest.raises(PretraceError):
            open_state(tmp_path / name)


class Pretended:
    """Pickles as a call of torch's own tensor rebuilder with a shape that no storage has."""

    def __init__(self, shape, strides):
        self.shape, self.strides = shape, strides

    def __reduce__(self):
        real = torch.ones(2)
        function, args = real.__reduce_ex__(2)
        return function, (args[0], 0, self.shape, self.strides, *args[4:])


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2**62, 2**62), (1, 1)), ((2**63,), (1,)), ((-1,), (1,)), ((3,), (1,)), ((2,), (2**62,)), ((2, 2), (1,))],
)
def test_tensors_that_no_storage_holds_are_refused(shape, strides, tmp_path):
    torch.save({"a": Pretended(shape, strides)}, tmp_path / "w.pt")
    found = codes(tmp_path / "w.pt")
    assert found
    assert found[0].startswith("pickle-")


def test_a_tensor_that_repeats_one_number_without_end_is_read_in_blocks_only(tmp_path):
    torch.save({"a": torch.ones(1).expand(1 << 40)}, tmp_path / "w.pt")
    with open_state(tmp_path / "w.pt") as view:
        assert view.read("a", (1 << 40) - 3, 1 << 40).tolist() == [1, 1, 1]


def test_dcp_chunks_in_another_folder_or_of_impossible_sizes_are_refused(tmp_path):
    small("dcp", tmp_path / "d")
    metadata = (tmp_path / "d" / ".metadata").read_bytes()
    (tmp_path / "d" / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"../../passwd"))
    assert codes(tmp_path / "d") == ["files-path"]


def test_a_zip_with_entries_that_overlap_is_refused(tmp_path):
    torch.save({"a": torch.ones(4), "b": torch.zeros(4)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as zipped:
        first, second = (next(e for e in zipped.infolist() if e.filename.endswith(f"data/{k}")) for k in "01")
    data = bytearray((tmp_path / "w.pt").read_bytes())
    at = data.rindex(second.filename.encode()) - 46  # its entry in the central directory
    data[at + 42 : at + 46] = first.header_offset.to_bytes(4, "little")
    (tmp_path / "w.pt").write_bytes(data)
    assert codes(tmp_path / "w.pt")[0] in ("zip-overlap", "zip-headers-disagree")


def test_deep_json_in_an_index_is_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(save({"a": np.ones(2, np.float32)}))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map":' * 5000 + "1" + "}" * 5000)
    assert codes(tmp_path) == ["index-depth"]


def test_a_bare_pickle_under_a_weights_name_is_no_checkpoint(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(PretraceError, match="no checkpoint of a known format"):
        open_state(tmp_path)


def test_threads_that_read_one_view_get_the_same_bits(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for kind in ("good_neox_tp2", "good_gpt2_tied", "good_bin", "good_orbax"):
        with open_state(checkpoint_cases() / kind) as view:
            names = view.names()
            alone = [read_all(view, name).tobytes() for name in names]
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda name, view=view: read_all(view, name).tobytes(), names * 3))
            assert together == alone * 3
