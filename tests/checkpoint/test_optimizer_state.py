"""The whole training state through every format that holds one, and the next update after it."""

import numpy as np
import pytest

from layouts import ADAM, adam_state, stateful, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical_state,
    layout_of,
    open_state,
    plain_options,
    read_all,
    relabel,
    write_hf,
    write_layout,
    write_safetensors,
)
from pretrace.checkpoint.chunked import StoredArray
from pretrace.checkpoint.layout import Layout
from pretrace.checkpoint.layout_zarr import zarr_files
from pretrace.checkpoint.moments import moments_of
from pretrace.checkpoint.optimizer_names import state_of
from pretrace.checkpoint.store_write import write_store
from pretrace.checkpoint.tables_jax import PAXML
from pretrace.dtypes import from_float32

PLACES = [("nanogpt", "gpt2", {}), ("orbax", "gpt_neox", {"ocdbt": False}), ("maxtext", "gpt2", {"ocdbt": False}),
          ("maxtext", "llama", {"ocdbt": True, "scan_axis": 0}), ("maxtext", "llama", {"ocdbt": False, "scan_axis": None}),
          ("llmc", "gpt2", {}), ("dcp", "llama", {}), ("neox", "gpt2", {"tensor_parallel": 2, "data_parallel": 2}),
          ("neox", "gpt_neox", {"tensor_parallel": 2, "pipeline": False}),
          ("neox", "llama", {"tensor_parallel": 2, "data_parallel": 4})]  # fmt: skip


def written(format, view, spec, folder, options):
    layout = layout_of(format, view, spec, plain_options(view, **options))
    assert layout.dropped == ()
    assert (format == "llmc") == any("4 updates" in note for note in layout.notes)
    (write_store if hasattr(layout, "arrays") else write_layout)(layout, folder)


@pytest.mark.parametrize(("format", "family", "options"), PLACES)
def test_moments_and_step_come_back_bit_for_bit(format, family, options, tmp_path):
    changes = {"vocab_size": 128} if format == "llmc" else {}
    spec = tiny_spec(family, n_layers=2, **changes)
    view = stateful(spec, optimizer_step=4)  # one update was skipped: the optimizer has seen fewer than the run
    written(format, view, spec, tmp_path, options)
    with open_state(tmp_path) as stored:
        ours = canonical_state(stored, spec)
        assert set(view.names()) <= set(ours.names())
        assert all((read_all(ours, name) == read_all(view, name)).all() for name in view.names())
        assert ours.metadata()["optimizer_step"] == (
            5 if format == "llmc" else 4
        )  # llm.c keeps one step, and a note says so
        if format in ("nanogpt", "neox"):
            assert ours.metadata()["adam"] == ADAM


@pytest.mark.parametrize("format", ["dcp", "neox"])
def test_masters_go_along_beside_weights_of_another_dtype(format, tmp_path):
    spec = tiny_spec("gpt_neox")
    masters = {name: a for name, a in adam_state(spec).items() if "optimizer." in name}
    halves = {name: array.astype(np.float16) for name, array in tiny_weights(spec).items()}
    view = ArraysView(halves | masters, metadata={"step": 5, "adam": ADAM})
    written(format, view, spec, tmp_path, {"tensor_parallel": 2})
    with open_state(tmp_path) as stored:
        ours = canonical_state(stored, spec)
        assert all((read_all(ours, name) == read_all(view, name)).all() for name in view.names())


def test_deepspeed_masters_are_the_weights_where_the_source_has_none(tmp_path):
    spec = tiny_spec("gpt_neox")
    moments = {name: a for name, a in adam_state(spec).items() if ".fp32." not in name}
    halves = {name: (array / 3).astype(np.float16) for name, array in tiny_weights(spec).items()}
    view = ArraysView(halves | moments, metadata={"step": 5, "adam": ADAM})
    written("neox", view, spec, tmp_path, {"tensor_parallel": 2})
    with open_state(tmp_path) as stored:
        ours = canonical_state(stored, spec)
        for name, weight in halves.items():
            assert (read_all(ours, f"optimizer.fp32.{name}") == weight.astype(np.float32)).all()


def paxml_state(spec):
    """A Paxml-style GPT-3 at step 4000 as its variables are named, with its Adam state."""
    view = stateful(spec, step=4000, optimizer_step=4000)
    weights = relabel(ArraysView(tiny_weights(spec)), PAXML, spec)
    arrays = {name: read_all(weights, name) for name in weights.names()}
    for slot, kind in (("m", "exp_avg"), ("v", "exp_avg_sq")):
        moments = relabel(state_of(view, kind), moments_of(PAXML, kind), spec)
        for name in moments.names():
            which = "p#3#i-1_2" if ".repeat." in name else "no_prefix_2"
            arrays[f"opt_states_0.{which}.{slot}.{name.removeprefix('mdl_vars.')}"] = read_all(moments, name)
    return arrays | {"opt_states_0.no_prefix_0.count": np.array(4000, np.int32), "step": np.array(4000, np.int32)}


def adam_step(weight, m, v, gradient, step, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
    """One update as adam_pax computes it: decoupled decay, corrected moments, float32."""
    m = np.float32(betas[0]) * m + np.float32(1 - betas[0]) * gradient
    v = np.float32(betas[1]) * v + np.float32(1 - betas[1]) * gradient**2
    mean, square = m / np.float32(1 - betas[0] ** step), v / np.float32(1 - betas[1] ** step)
    return weight - np.float32(lr) * (mean / (np.sqrt(square) + np.float32(eps)) + np.float32(decay) * weight)


def write_zarr(arrays, folder):
    """A zarr folder for each array under its dotted name, as Paxml's checkpoints are."""
    view = ArraysView(arrays)
    stored = [
        StoredArray(name, name, view.info(name).dtype, view.info(name).shape, view.info(name).shape) for name in arrays
    ]
    write_layout(Layout("zarr", tuple(file for array in stored for file in zarr_files("", array)), view), folder)


@pytest.mark.parametrize("prefix", ["", "state."])
def test_a_paxml_folder_on_the_disk_is_read_with_its_adam_state(prefix, tmp_path):
    spec = tiny_spec("gpt2")
    write_zarr(
        {(name if name == "step" else prefix + name): array for name, array in paxml_state(spec).items()}, tmp_path
    )
    with open_state(tmp_path) as stored:
        assert stored.metadata()["step"] == 4000
        ours = canonical_state(stored, spec)
        assert ours.metadata()["naming"].unmatched == ()
        assert ours.metadata()["optimizer_step"] == 4000
        wanted = stateful(spec)
        assert set(ours.names()) == set(wanted.names())
        assert all((read_all(ours, name) == read_all(wanted, name)).all() for name in wanted.names())


@pytest.mark.parametrize("scan_axis", [1, None])
def test_a_paxml_run_at_step_4000_goes_on_in_maxtext_with_the_same_next_update(scan_axis, tmp_path):
    spec = tiny_spec("gpt2")
    paxml = ArraysView(paxml_state(spec), metadata={"step": 4000})
    ours = canonical_state(paxml, spec)
    assert ours.metadata()["optimizer_step"] == 4000
    written("maxtext", ours, spec, tmp_path, {"scan_axis": scan_axis, "ocdbt": False})
    kernel = "mlp.wi.kernel"
    theirs = "mdl_vars.params.lm.transformer.repeat.sub.x_layers_0.ff_layer.ffn_layer1.linear.w"
    m, v = (f"opt_states_0.p#3#i-1_2.{slot}.{theirs.removeprefix('mdl_vars.')}" for slot in "mv")
    gradient = np.random.default_rng(3).standard_normal(paxml.info(theirs).shape).astype(np.float32)
    before = adam_step(*(read_all(paxml, name) for name in (theirs, m, v)), gradient, 4001)
    with open_state(tmp_path) as stored:
        assert stored.metadata()["step"] == 4000
        assert read_all(stored, "opt_state.count") == 4000
        for layer in range(3):
            where = f"decoder.layers_{layer}.{kernel}" if scan_axis is None else f"decoder.layers.{kernel}"
            state = [
                read_all(stored, name + where)
                for name in ("params.params.", "opt_state.mu.params.", "opt_state.nu.params.")
            ]
            after = adam_step(*(s if scan_axis is None else s[:, layer] for s in state), gradient[layer], 4001)
            assert (after == before[layer]).all()


def test_an_adam_on_the_divided_query_is_one_on_ours_with_lr_times_the_root(tmp_path):
    spec = tiny_spec("llama")  # head_dim 16
    view = stateful(spec)
    layout = layout_of("maxtext", view, spec, plain_options(view, scan_axis=None, ocdbt=False))
    kernel = "params.decoder.layers_0.self_attention.query.kernel"
    tensors = {file.path: file.pieces[0].tensor for file in layout.files if file.path.endswith("query.kernel/0.0.0")}
    theirs = [
        read_all(layout.sources, tensors[f"5/items/{top}{kernel}/0.0.0"])
        for top in ("params.", "opt_state.mu.", "opt_state.nu.")
    ]
    name = "blocks.0.attn.q.weight"
    ours = [read_all(view, n) for n in (name, f"optimizer.exp_avg.{name}", f"optimizer.exp_avg_sq.{name}")]
    gradient = np.random.default_rng(3).standard_normal(ours[0].shape).astype(np.float32)

    def turned(a):  # [out, in] half-split -> [in, head, interleaved]
        return a.T.reshape(64, 4, 2, 8).transpose(0, 1, 3, 2).reshape(64, 4, 16)

    after = adam_step(*theirs, turned(gradient) * 4, 6)
    wanted = adam_step(*ours, gradient, 6, lr=4e-3, eps=1e-8 / 4, decay=0.1 / 4)
    assert np.abs(turned(wanted) / 4 - after).max() < 1e-7  # one ulp of 0.5 is 6e-8


def train_state(spec):
    """The tensors of a `train_state` folder."""
    state = {f"param.{name}": array for name, array in tiny_weights(spec).items()}
    return state | {name.removeprefix("optimizer."): a for name, a in adam_state(spec).items() if ".fp32." not in name}


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_checkpoint_of_pretrace_has_its_state_beside_the_weights(kind, tmp_path):
    spec = tiny_spec("llama")
    weights = ArraysView(
        {n: from_float32(a, kind) for n, a in tiny_weights(spec).items()},
        dtypes=dict.fromkeys(tiny_weights(spec), kind),
    )
    write_hf(tmp_path, weights, spec)
    (tmp_path / "train_state").mkdir()
    write_safetensors(tmp_path / "train_state" / "tensors.safetensors", ArraysView(train_state(spec)), {})
    (tmp_path / "train_state" / "position.json").write_text('{"step": 5, "updates_applied": 4, "schedule_offset": 0}')
    with open_state(tmp_path) as view:
        ours = canonical_state(view)
        assert (ours.metadata()["step"], ours.metadata()["optimizer_step"]) == (5, 4)
        assert (read_all(ours, "embed.weight") == read_all(weights, "embed.weight")).all()
        name = "optimizer.exp_avg.final_norm.weight"
        assert (read_all(ours, name) == adam_state(spec)[name]).all()
        # Masters only where the weights are rounded copies.
        assert ("optimizer.fp32.embed.weight" in ours.names()) == (kind == "bfloat16")
    with open_state(tmp_path / "train_state") as view:
        ours = canonical_state(view)
        assert set(ours.names()) == set(stateful(spec).names())
        assert (read_all(ours, "embed.weight") == tiny_weights(spec)["embed.weight"]).all()


def test_a_training_state_in_shards_is_found_beside_the_weights_too(tmp_path):
    import torch
    import torch.distributed.checkpoint as dcp

    spec = tiny_spec("llama", n_layers=1)
    write_hf(tmp_path, ArraysView(tiny_weights(spec)), spec)
    tensors = {name: torch.from_numpy(array) for name, array in train_state(spec).items()}
    dcp.save(tensors, checkpoint_id=tmp_path / "train_state" / "shards", no_dist=True)
    (tmp_path / "train_state" / "position.json").write_text('{"step": 5, "updates_applied": 5}')
    for place in (tmp_path, tmp_path / "train_state" / "shards"):
        with open_state(place) as view:
            ours = canonical_state(view, spec)
            assert ours.metadata()["optimizer_step"] == 5
            assert set(ours.names()) == set(stateful(spec).names())
            name = "optimizer.exp_avg.final_norm.weight"
            assert (read_all(ours, name) == adam_state(spec)[name]).all()
