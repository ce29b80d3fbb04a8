"""Orbax folders, in OCDBT and in plain chunks: read back bit for bit, and restored by Orbax itself."""

import json
import subprocess
import sys

import numpy as np
import pytest

from layouts import adam_state, covers, stateful, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    layout_of,
    open_state,
    plain_options,
    read_all,
    survey,
    write_layout,
)
from pretrace.checkpoint.store_write import write_store
from pretrace.errors import PretraceError

# Format, family, scan axis, OCDBT.
TARGETS = [("orbax", "gpt_neox", None, True), ("orbax", "gpt2", None, False)] + [
    ("maxtext", family, axis, axis == 1) for family in ("gpt2", "llama") for axis in (0, 1, None)
]


def write(format, view, spec, folder, **options):
    layout = layout_of(format, view, spec, plain_options(view, **options))
    (write_store if hasattr(layout, "arrays") else write_layout)(layout, folder)
    return layout


@pytest.mark.parametrize(("format", "family", "scan_axis", "ocdbt"), TARGETS)
def test_weights_come_back_bit_for_bit(format, family, scan_axis, ocdbt, tmp_path):
    spec = tiny_spec(family, n_layers=2)
    weights = tiny_weights(spec)
    view = ArraysView(weights, metadata={"step": 5})
    write(format, view, spec, tmp_path, scan_axis=scan_axis, ocdbt=ocdbt, shard_bytes=20_000)
    seen = survey(tmp_path, deep=True)
    assert (seen.findings, seen.step, seen.config["model_type"]) == ((), 5, family)
    ours = canonical(seen.view)
    assert set(ours.names()) == set(weights)
    assert all((read_all(ours, name) == array).all() for name, array in weights.items())


def test_bfloat16_is_stored_as_it_is(tmp_path):
    spec = tiny_spec("llama", n_layers=1)
    rng = np.random.default_rng(0)
    bits = {name: rng.integers(0, 1 << 14, a.shape).astype(np.uint16) for name, a in tiny_weights(spec).items()}
    view = ArraysView(bits, dtypes=dict.fromkeys(bits, "bfloat16"))
    for ocdbt in (True, False):
        write("orbax", view, spec, tmp_path / str(ocdbt) if not (tmp_path / str(ocdbt)).mkdir() else "", ocdbt=ocdbt)
        with open_state(tmp_path / str(ocdbt)) as seen:
            assert seen.info("embed.weight").dtype == "bfloat16"
            assert all((read_all(seen, name) == array).all() for name, array in bits.items())


def test_plain_chunks_are_raw_runs_of_an_array_that_is_no_stack(tmp_path):
    spec = tiny_spec("llama", n_layers=1, d_ff=8)
    view = ArraysView(tiny_weights(spec))
    layout = layout_of("orbax", view, spec, plain_options(view, ocdbt=False, shard_bytes=1024))
    assert all(covers(file) for file in layout.files)
    write_layout(layout, tmp_path)
    assert json.loads((tmp_path / "embed.weight" / ".zarray").read_text())["chunks"] == [4, 64]
    chunk = np.fromfile(tmp_path / "embed.weight" / "1.0", "<f4")
    assert (chunk == tiny_weights(spec)["embed.weight"][4:8].ravel()).all()
    with open_state(tmp_path) as seen:
        assert (read_all(seen, "embed.weight") == tiny_weights(spec)["embed.weight"]).all()


def test_a_missing_chunk_of_what_we_wrote_is_found(tmp_path):
    spec = tiny_spec("llama", n_layers=1, d_ff=8)
    write("orbax", ArraysView(tiny_weights(spec)), spec, tmp_path, ocdbt=False, shard_bytes=1024)
    (tmp_path / "embed.weight" / "1.0").unlink()
    (finding,) = survey(tmp_path).findings
    assert (finding.code, finding.severity) == ("chunks-absent", "error")


def test_moments_of_the_divided_query_are_those_of_its_own_gradient():
    spec = tiny_spec("llama")  # head_dim 16: the query is a quarter, its gradient four times ours
    view = stateful(spec)
    layout = layout_of("maxtext", view, spec, plain_options(view, scan_axis=None))
    at = {array.key: array.tensor for array in layout.arrays}
    kernel = "decoder.layers_0.self_attention.query.kernel"
    for slot, kind, scale in (
        ("params.", "", 1 / 4),
        ("opt_state.mu.", "exp_avg", 4.0),
        ("opt_state.nu.", "exp_avg_sq", 16.0),
    ):
        ours = (adam_state(spec) | tiny_weights(spec))[
            f"optimizer.{kind}.blocks.0.attn.q.weight" if kind else "blocks.0.attn.q.weight"
        ]
        theirs = read_all(layout.sources, at[f"{slot}params.{kernel}"])
        pairs = ours.T.reshape(64, 4, 2, 8).transpose(0, 1, 3, 2).reshape(64, 4, 16)  # half-split -> interleaved
        assert (theirs == pairs * np.float32(scale)).all()
    assert "lr x 4" in layout.notes[0]


def test_a_norm_that_is_stored_as_its_distance_from_one_has_the_moments_of_the_whole():
    spec = tiny_spec("gpt2")
    view = stateful(spec)
    layout = layout_of("maxtext", view, spec, plain_options(view))
    at = {array.key: array.tensor for array in layout.arrays}
    scale = "params.decoder.decoder_norm.scale"
    assert (read_all(layout.sources, at["params." + scale]) == tiny_weights(spec)["final_norm.weight"] - 1).all()
    mean = adam_state(spec)["optimizer.exp_avg.final_norm.weight"]
    assert (read_all(layout.sources, at["opt_state.mu." + scale]) == mean).all()


def test_a_neox_model_has_no_place_in_maxtext():
    spec = tiny_spec("gpt_neox")
    view = ArraysView(tiny_weights(spec))
    with pytest.raises(PretraceError, match="MaxText has Llama and GPT-3"):
        layout_of("maxtext", view, spec, plain_options(view))


ORBAX = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, orbax.checkpoint as ocp
root = sys.argv[1]
def flat(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(str(k.key) for k in path): np.asarray(leaf) for path, leaf in leaves}
for form in ("True", "False"):
    got = flat(ocp.StandardCheckpointer().restore(f"{root}/orbax{form}"))
    again = flat(ocp.PyTreeCheckpointer().restore(f"{root}/orbax{form}"))
    assert got.keys() == again.keys() and all((got[k] == again[k]).all() for k in got)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {"embed": {"weight": jax.ShapeDtypeStruct((12, 64), np.float32, sharding=one)}}
    part = ocp.PyTreeCheckpointer().restore(f"{root}/orbax{form}", args=ocp.args.PyTreeRestore(
        item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True))
    assert isinstance(part["embed"]["weight"], jax.Array) and (got["embed.weight"] == part["embed"]["weight"]).all()
    np.savez(f"{root}/orbax{form}.npz", **got)
    manager = ocp.CheckpointManager(f"{root}/maxtext{form}", item_names=("items",))
    assert manager.latest_step() == 5
    tree = manager.restore(5, args=ocp.args.Composite(items=ocp.args.PyTreeRestore()))["items"]
    np.savez(f"{root}/maxtext{form}.npz", **flat(tree))
# MaxText restores into arrays that are cut over a mesh: on either axis, and on both.
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
named = {"True": np.load(f"{root}/maxtextTrue.npz"), "False": np.load(f"{root}/maxtextFalse.npz")}
for form in ("True", "False"):
    for axes in (("data", None, None), (None, None, "model"), ("data", None, "model"), (None, "model", "data")):
        cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        kernel = jax.ShapeDtypeStruct((64, 4, 96), np.float32, sharding=cut)
        inner = {"wi_0": {"kernel": kernel}}
        wanted = {"params": {"params": {"decoder": {"layers": {"mlp": inner}}}}}
        got = ocp.PyTreeCheckpointer().restore(f"{root}/maxtext{form}/5/items", args=ocp.args.PyTreeRestore(
            item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True))
        array = got["params"]["params"]["decoder"]["layers"]["mlp"]["wi_0"]["kernel"]
        assert array.sharding == cut and len(array.addressable_shards) == 4
        assert (np.asarray(array) == named[form]["params.params.decoder.layers.mlp.wi_0.kernel"]).all()
"""


@pytest.mark.interop
def test_orbax_restores_what_was_written(tmp_path):
    spec = tiny_spec("llama", n_layers=4, d_ff=96)
    view = stateful(spec)
    layouts = {}
    for format in ("orbax", "maxtext"):
        for ocdbt in (True, False):
            (tmp_path / f"{format}{ocdbt}").mkdir()
            layouts[f"{format}{ocdbt}"] = write(
                format, view, spec, tmp_path / f"{format}{ocdbt}", ocdbt=ocdbt, shard_bytes=12288
            )
    kernel = next(a for a in layouts["maxtextTrue"].arrays if a.key == "params.params.decoder.layers.mlp.wi_0.kernel")
    assert (kernel.shape, kernel.chunks) == ((64, 4, 96), (32, 1, 96))
    subprocess.run([sys.executable, "-c", ORBAX, str(tmp_path)], check=True, timeout=110)
    named = {array.key: array.tensor for array in layouts["maxtextTrue"].arrays}
    for form in ("True", "False"):
        ours, theirs = np.load(tmp_path / f"orbax{form}.npz"), np.load(tmp_path / f"maxtext{form}.npz")
        assert set(ours) == set(view.names()) | {"step", "optimizer.step"}
        assert all((ours[name] == read_all(view, name)).all() for name in view.names())
        assert set(theirs) == set(named)
        assert (theirs["step"], theirs["opt_state.count"]) == (5, 5)
        sources = layouts["maxtextTrue"].sources
        assert all((theirs[key] == read_all(sources, tensor)).all() for key, tensor in named.items())
