"""Orbax and zarr folders: equal to what tensorstore and Orbax wrote, and absent chunks by their geometry."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorstore as ts
import zstandard

from assets import checkpoint_cases
from pretrace.checkpoint import open_state, read_all, survey
from pretrace.checkpoint.faults import DamagedFile
from pretrace.checkpoint.zarr_absence import absence
from pretrace.checkpoint.zarr_array import parse_array
from pretrace.errors import PretraceError

WI = np.random.default_rng(0).standard_normal((8, 2, 16)).astype(np.float32) * np.float32(0.02)


def test_four_processes_on_one_file_system_wrote_whole_arrays():
    with open_state(checkpoint_cases() / "good_orbax") as view:
        assert view.format == "orbax"
        assert (read_all(view, "params.params.decoder.layers.mlp.wi.kernel") == WI).all()
        assert (view.read("params.params.decoder.layers.mlp.wi.kernel", 13, 77) == WI.reshape(-1)[13:77]).all()


def test_one_of_four_hosts_is_seen_from_the_keys_with_axis_share_and_writer():
    seen = survey(checkpoint_cases() / "orbax_host0_only")
    absent = next(f for f in seen.findings if f.code == "chunks-absent")
    assert absent.severity == "error"
    assert (
        "chunks 1 to 3 of 4 on axis 2 are absent in params.params.decoder.layers.mlp.wi.kernel (75% of its values"
        in absent.what
    )
    assert "in 3 of 3 arrays; the only writer here is process_0" in absent.what
    wi = read_all(seen.view, "params.params.decoder.layers.mlp.wi.kernel")
    assert (wi[..., :4] == WI[..., :4]).all()
    assert not wi[..., 4:].any()


def test_no_jax_and_no_orbax_is_imported():
    path = checkpoint_cases() / "good_orbax"
    code = f"import sys; from pretrace.checkpoint import survey; survey({str(path)!r}, deep=True); "
    code += "print({'jax', 'orbax', 'torch'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def written(folder, data, driver="zarr", chunks=(3, 4), **metadata):
    """An array that tensorstore writes."""
    spec = {"driver": driver, "kvstore": f"file://{folder}/{'w'}/", "metadata": {"shape": list(data.shape), **metadata}}
    if driver == "zarr":
        spec["metadata"] |= {
            "chunks": list(chunks),
            "dtype": data.dtype.str if data.dtype != "bfloat16" else "bfloat16",
        }
    else:
        spec["metadata"] |= {
            "data_type": data.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        }
    ts.open(spec, create=True).result().write(data).result()
    return open_state(folder)


DATA = np.arange(1, 78, dtype=np.float32).reshape(7, 11)  # chunks of 3 x 4 do not divide it
V3 = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize(
    ("driver", "metadata"),
    [
        ("zarr", {"compressor": None}),
        ("zarr", {"compressor": None, "order": "F"}),
        ("zarr", {"compressor": {"id": "zstd", "level": 3}}),
        ("zarr", {"compressor": {"id": "gzip", "level": 3}, "dimension_separator": "/"}),
        ("zarr", {"compressor": {"id": "zlib", "level": 3}}),
        ("zarr", {"compressor": {"id": "blosc"}}),
        ("zarr", {"compressor": {"id": "blosc"}, "order": "F"}),
        ("zarr3", {}),
        ("zarr3", {"codecs": [V3, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]}),
        ("zarr3", {"codecs": [V3, {"name": "gzip", "configuration": {"level": 1}}]}),
        ("zarr3", {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, V3]}),
        ("zarr3", {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 2], "codecs": [V3]}}]}),
    ],
)  # fmt: skip
def test_arrays_that_tensorstore_writes_are_read_bit_for_bit(driver, metadata, tmp_path):
    with written(tmp_path, DATA, driver, **metadata) as view:
        assert (read_all(view, "w") == DATA).all()
        assert (view.read("w", 10, 50) == DATA.reshape(-1)[10:50]).all()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_every_dtype_keeps_its_bits(kind, driver, tmp_path):
    import ml_dtypes

    data = (DATA % 2).astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    with written(tmp_path, data, driver) as view:
        assert view.info("w").dtype == kind
        assert read_all(view, "w").tobytes() == data.tobytes()


def test_a_scalar_step_is_known(tmp_path):
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}/step/",
        "metadata": {"shape": [], "chunks": [], "dtype": "<i4"},
    }
    ts.open(spec, create=True).result().write(np.int32(77)).result()
    assert survey(tmp_path).step == 77


def test_a_lost_chunk_of_a_plain_zarr_folder_is_an_error_if_others_are_there(tmp_path):
    written(tmp_path, DATA).close()
    (tmp_path / "w" / "1.1").unlink()
    (finding,) = survey(tmp_path).findings
    assert (finding.code, finding.severity) == ("chunks-absent", "error")
    assert "1 of 9 chunks are absent in w" in finding.what


def test_an_array_without_any_chunk_may_be_zero_and_is_warned_of(tmp_path):
    written(tmp_path, np.zeros((7, 11), np.float32), fill_value=0.0).close()
    assert not (tmp_path / "w" / "0.0").exists()
    assert [f.severity for f in survey(tmp_path).findings] == ["warning"]


@pytest.mark.parametrize(
    ("lost", "axis", "first", "last"),
    [
        ({(0, 1), (1, 1), (2, 1)}, 1, 1, 1),
        ({(i, j) for i in (1, 2) for j in range(3)}, 0, 1, 2),
        ({(0, 0), (1, 1)}, None, 0, 0),
    ],
)
def test_the_geometry_of_what_is_absent(lost, axis, first, last):
    array = parse_array(
        "w", {"zarr_format": 2, "shape": [7, 11], "chunks": [3, 4], "dtype": "<f4", "compressor": None}, "w"
    )
    there = {f"w/{key}" for key, index in array.chunk_keys().items() if index not in lost}
    seen = absence(array, frozenset(there))
    assert (seen.axis, seen.first, seen.last, seen.n_absent) == (axis, first, last, len(lost))


HEADER = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f4", "compressor": {"id": "zstd"}}


def folder_with(path, header, chunk=b""):
    (path / "w").mkdir()
    (path / "w" / ".zarray").write_text(header if isinstance(header, str) else json.dumps(header))
    (path / "w" / "0").write_bytes(chunk)
    return path


@pytest.mark.parametrize(
    "change",
    [{"shape": [2**63]}, {"shape": [-1]}, {"chunks": [0]}, {"chunks": [1, 1]}, {"dtype": "|O"}, {"dtype": 7},
     {"shape": [2**40], "chunks": [1]},
     {"zarr_format": 9}, {"shape": "x"}, {"compressor": 3}],
)  # fmt: skip
def test_metadata_that_lies_is_refused(change, tmp_path):
    codes = {f.code for f in survey(folder_with(tmp_path, HEADER | change)).findings}
    assert codes <= {"chunks-metadata"}
    assert codes


def test_a_chunk_that_inflates_past_its_size_is_refused(tmp_path):
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (64 << 20))
    with open_state(folder_with(tmp_path, HEADER, bomb)) as view, pytest.raises(DamagedFile) as caught:
        read_all(view, "w")
    assert caught.value.code == "size"


def test_a_blosc_chunk_that_claims_another_size_is_refused(tmp_path):
    bomb = b"\x02\x01\x21\x04" + (1 << 30).to_bytes(4, "little") + bytes(24)
    header = HEADER | {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}}
    with (
        open_state(folder_with(tmp_path, header, bomb)) as view,
        pytest.raises(DamagedFile, match="would hold 1,073,741,824"),
    ):
        read_all(view, "w")


@pytest.mark.parametrize("compressor", [None, {"id": "zstd", "level": 1}, {"id": "blosc"}])
def test_big_endian_numbers_are_turned_once(compressor, tmp_path):
    with written(tmp_path, DATA.astype(">f4"), compressor=compressor) as view:
        assert (read_all(view, "w") == DATA).all()


def test_a_damaged_chunk_is_refused(tmp_path):
    with open_state(folder_with(tmp_path, HEADER, b"nonsense")) as view, pytest.raises(DamagedFile) as caught:
        read_all(view, "w")
    assert caught.value.code == "crc"


def test_several_steps_in_one_folder_must_be_told_apart(tmp_path):
    for step in ("100", "200"):
        shutil.copytree(checkpoint_cases() / "good_orbax", tmp_path / step / "items")
    with pytest.raises(PretraceError, match="2 checkpoints are here"):
        open_state(tmp_path)
    with open_state(tmp_path / "200") as view:
        assert len(view.names()) == 3


ORBAX = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"; os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
split = NamedSharding(Mesh(np.array(jax.devices()), ("fsdp",)), P(None, "fsdp"))
def leaf(seed, shape): return jax.device_put(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), split)
tree = {"params": {"kernel": leaf(0, (8, 4, 6)), "half": leaf(1, (16, 8)).astype(jnp.bfloat16), "one": jnp.ones(5)}, "step": 7}
for name, options in (("ocdbt", {}), ("ocdbt_zarr3", {"use_zarr3": True}), ("zarr", {"use_ocdbt": False})):
    saver = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options))
    saver.save(f"{sys.argv[1]}/{name}/7/items", args=ocp.args.PyTreeSave(tree)); saver.close()
manager = ocp.CheckpointManager(f"{sys.argv[1]}/manager"); manager.save(7, args=ocp.args.StandardSave(tree))
manager.wait_until_finished(); manager.close()
np.savez(f"{sys.argv[1]}/truth.npz", kernel=tree["params"]["kernel"], half=np.asarray(tree["params"]["half"]).view(np.uint16))
"""


@pytest.mark.interop
def test_what_orbax_writes_in_each_of_its_forms_is_read_bit_for_bit(tmp_path):
    subprocess.run([sys.executable, "-c", ORBAX, str(tmp_path)], check=True, timeout=110)
    truth = np.load(tmp_path / "truth.npz")
    for form in ("ocdbt/7", "ocdbt_zarr3/7", "zarr/7", "manager/7"):
        seen = survey(tmp_path / form, deep=True)
        assert (seen.findings, seen.step) == ((), 7), form
        assert (read_all(seen.view, "params.kernel") == truth["kernel"]).all()
        assert (read_all(seen.view, "params.half") == truth["half"]).all()
        assert seen.view.info("params.half").dtype == "bfloat16"
        assert read_all(seen.view, "params.one").tolist() == [1.0] * 5
