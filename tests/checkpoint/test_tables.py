"""Every table, there and back, and the layouts that are easy to get wrong by hand."""

import numpy as np
import pytest
import torch

from pretrace.checkpoint import ArraysView, Dims, canonical, open_state, read_all, relabel
from pretrace.checkpoint.names import best_table
from pretrace.checkpoint.tables import ALL
from pretrace.model.spec import ModelSpec, tensor_shapes

# head_dim 16: its square root is a power of two, so scaling is exact.
SIZES = {"vocab_size": 12, "max_seq_len": 5, "n_layers": 3, "d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 24}
GPT = {
    "position": "learned",
    "rotary_pct": 0.0,
    "rotary_base": 0.0,
    "norm": "layernorm",
    "activation": "gelu",
    "gated": False,
    "bias": True,
}
LLAMA = {
    "position": "rotary",
    "rotary_pct": 1.0,
    "rotary_base": 1e4,
    "norm": "rmsnorm",
    "activation": "silu",
    "gated": True,
    "bias": False,
}
REST = {"family": "native", "norm_eps": 1e-5, "norm_place": "pre", "residual": "sequential", "tied_head": True,
        "dropout": {"embed": 0, "attention": 0, "residual": 0}, "init": {"kind": "normal", "std": 0.02}}  # fmt: skip
NEOX = GPT | {"position": "rotary", "rotary_pct": 0.5, "rotary_base": 1e4}
KINDS = {"gpt2": GPT, "gpt_neox": NEOX, "llama": LLAMA | {"n_kv_heads": 2}}
MULTI_HEAD_ONLY = ("megatron, version 1", "megatron, version 0")


def spec_for(table):
    changes = {} if table.grouped is None else {"n_kv_heads": 2 if table.grouped else 4}
    return ModelSpec.model_validate(SIZES | REST | KINDS[table.family] | changes)


def weights(spec):
    rng = np.random.default_rng(0)
    made = {}
    for name, shape in tensor_shapes(spec).items():
        # Multiples of 2**-10 between 0.5 and 1.5: adding and taking away 1 is exact, so is any power of two.
        made[name] = (rng.integers(512, 1536, shape) / 1024).astype(np.float32)
    return made


def materialised(view):
    return ArraysView({name: read_all(view, name) for name in view.names()})


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_every_table_there_and_back_is_the_identity_and_is_recognised(table):
    spec = spec_for(table)
    ours = weights(spec)
    theirs = materialised(relabel(ArraysView(ours), table, spec))
    if table.name not in MULTI_HEAD_ONLY:  # these are told by the version in the file, not by names
        assert best_table(theirs.about(grouped=bool(table.grouped))).name == table.name
    back = canonical(theirs, spec, table=table)
    assert set(back.names()) == set(ours)
    for name, tensor in ours.items():
        assert back.info(name).shape == tensor.shape
        assert (read_all(back, name) == tensor).all(), name


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_blocks_through_two_layers_of_layout_are_parts_of_the_whole(table):
    spec = spec_for(table)
    ours = weights(spec)
    round_trip = canonical(relabel(ArraysView(ours), table, spec), spec, table=table)
    for name in ("blocks.1.attn.q.weight", "blocks.2.mlp.down.weight", "embed.weight"):
        flat = ours[name].reshape(-1)
        for start in range(0, len(flat), 321):
            assert (round_trip.read(name, start, min(start + 321, len(flat))) == flat[start : start + 321]).all()


def table(name):
    return next(t for t in ALL if t.name == name)


def test_a_stacked_layer_is_picked_along_the_scan_axis():
    kernel = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)  # [i, L, f]
    view = ArraysView({"params.params.decoder.layers.mlp.wi.kernel": kernel})
    ours = canonical(view, table=table("maxtext gpt3 scanned on axis 1"))
    assert ours.names() == tuple(f"blocks.{i}.mlp.up.weight" for i in range(3))
    assert (read_all(ours, "blocks.2.mlp.up.weight") == kernel[:, 2].T).all()


def test_the_scan_axis_is_told_by_the_width_of_the_norm():
    for shape, wanted in (((8, 3), "maxtext llama scanned on axis 1"), ((3, 8), "maxtext llama scanned on axis 0")):
        arrays = {
            "params.decoder.layers.pre_self_attention_layer_norm.scale": np.zeros(shape),
            "params.decoder.decoder_norm.scale": np.zeros(8),
        }
        assert best_table(ArraysView(arrays)).name == wanted


def test_maxtext_divides_the_query_by_the_root_of_head_dim_and_gpt3_norms_keep_their_distance_from_one():
    query = np.ones((1, 1, 16), np.float32)  # [i, h, d]
    view = ArraysView({"decoder.layers_0.self_attention.query.kernel": query})
    ours = canonical(view, Dims(1, 1, 1, 16, 16), table=table("maxtext llama unscanned"))
    assert read_all(ours, "blocks.0.attn.q.weight").ravel().tolist() == [4.0] * 16
    view = ArraysView({"mdl_vars.params.lm.final_ln.scale": np.array([0.0, 0.25], np.float32)})
    assert read_all(canonical(view), "final_norm.weight").tolist() == [1.0, 1.25]


def test_paxml_embedding_is_the_transposed_softmax():
    view = ArraysView({"mdl_vars.params.lm.softmax.logits_ffn.linear.w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert read_all(canonical(view), "embed.weight").tolist() == [[0, 3], [1, 4], [2, 5]]


def test_two_gpt3_query_kernels_would_be_two_answers_so_fused_and_apart_are_two_tables():
    names = [t.name for t in ALL if "gpt3" in t.name and "maxtext" in t.name]
    assert len(names) == 6


def megatron(folder, version, tp, pp, spec, ours):
    """A legacy Megatron folder: QKV in the version's order, cut over ranks and stages as Megatron cuts them."""
    name = "megatron" if version >= 2 else f"megatron, version {version}"
    theirs = materialised(relabel(ArraysView(ours), table(name), spec))
    per_stage = spec.n_layers // pp
    for stage in range(pp):
        for rank in range(tp):
            model = {}
            for key in theirs.names():
                layer = int(key.split("layers.")[1].split(".")[0]) if "layers." in key else None
                here = layer // per_stage == stage if layer is not None else stage == (pp - 1 if "final" in key else 0)
                if here:
                    renamed = key if layer is None else key.replace(f"layers.{layer}.", f"layers.{layer % per_stage}.")
                    model[renamed.removeprefix("language_model.")] = torch.from_numpy(
                        cut(key, read_all(theirs, key), version, tp, rank).copy()
                    )
            place = folder / "iter_0000007" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
            place.mkdir(parents=True)
            args = {
                "num_layers": spec.n_layers,
                "hidden_size": spec.d_model,
                "num_attention_heads": spec.n_heads,
                "num_query_groups": 1,
            }
            saved = {
                "model": {"language_model": model},
                "checkpoint_version": float(version),
                "iteration": 7,
                "args": args,
            }
            torch.save(saved, place / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("7")


def cut(key, tensor, version, tp, rank):
    if "query_key_value" in key and version == 0:
        parts = tensor.reshape(3, tp, -1, *tensor.shape[1:])[:, rank]
        return parts.reshape(-1, *tensor.shape[1:])
    if any(part in key for part in ("query_key_value", "dense_h_to_4h", "word_embeddings")):
        return np.split(tensor, tp, 0)[rank]
    if key.endswith(("self_attention.dense.weight", "dense_4h_to_h.weight")):
        return np.split(tensor, tp, 1)[rank]
    return tensor


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 3)])
def test_megatron_folders_merge_over_tensor_and_pipeline_ranks(version, tp, pp, tmp_path):
    spec = ModelSpec.model_validate(SIZES | REST | GPT)
    ours = weights(spec)
    megatron(tmp_path, version, tp, pp, spec, ours)
    with open_state(tmp_path) as view:
        assert (view.format, view.metadata()["step"]) == ("megatron", 7)
        back = canonical(view)
        assert set(back.names()) == set(ours)
        assert all((read_all(back, name) == tensor).all() for name, tensor in ours.items())


def test_a_megatron_rank_that_is_missing_is_named(tmp_path):
    import shutil

    from pretrace.checkpoint import survey

    spec = ModelSpec.model_validate(SIZES | REST | GPT)
    megatron(tmp_path, 2, 2, 3, spec, weights(spec))
    shutil.rmtree(tmp_path / "iter_0000007" / "mp_rank_00_001")
    assert "tensor rank 0, pipeline stage 1" in survey(tmp_path).findings[0].what
