"""nanoGPT's file, llm.c's and torch's distributed folder: read back bit for bit, and loaded by torch."""

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from layouts import adam_state, covers, stateful, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    layout_of,
    plain_options,
    read_all,
    survey,
    with_rows,
    write_layout,
)
from pretrace.errors import PretraceError


def written(format, view, spec, folder, **options):
    layout = layout_of(format, view, spec, plain_options(view, **options))
    assert all(covers(file) for file in layout.files)
    write_layout(layout, folder)
    seen = survey(folder, deep=True)
    assert seen.findings == ()
    return layout, seen


def assert_same(view, arrays):
    assert set(view.names()) == set(arrays)
    for name, array in arrays.items():
        assert (read_all(view, name) == array).all(), name


@pytest.mark.parametrize(
    ("format", "family"),
    [("nanogpt", "gpt2"), ("llmc", "gpt2"), ("dcp", "gpt2"), ("dcp", "gpt_neox"), ("dcp", "llama")],
)
def test_weights_come_back_bit_for_bit(format, family, tmp_path):
    spec = tiny_spec(family)
    weights = tiny_weights(spec)
    _, seen = written(format, ArraysView(weights, metadata={"step": 5}), spec, tmp_path, shard_bytes=200_000)
    assert_same(with_rows(canonical(seen.view), spec.vocab_size), weights)


def test_torch_loads_nanogpts_file_and_its_optimizer_goes_on_with_it(tmp_path):
    spec = tiny_spec("gpt2")
    view = stateful(spec)
    layout, seen = written("nanogpt", view, spec, tmp_path)
    assert (layout.dropped, seen.step) == ((), 5)
    saved = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    model = saved["model"]
    assert model["lm_head.weight"].data_ptr() == model["transformer.wte.weight"].data_ptr()
    assert saved["model_args"] == {"n_layer": 3, "n_head": 4, "n_embd": 64, "block_size": 8, "bias": True, "vocab_size": 12,
                                   "dropout": 0.0}  # fmt: skip
    names = [name for name in model if name != "lm_head.weight"]
    assert names[:3] == ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight"]
    assert names[3:9:2] == [
        "transformer.h.0.ln_1.bias",
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_proj.bias",
    ]
    assert names[14] == "transformer.h.1.ln_1.weight"  # layer after layer, as the module lists them
    tall = [torch.nn.Parameter(model[n]) for n in names if model[n].dim() >= 2]
    flat = [torch.nn.Parameter(model[n]) for n in names if model[n].dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": tall, "weight_decay": 9.0}, {"params": flat, "weight_decay": 9.0}], lr=9.0
    )
    optimizer.load_state_dict(saved["optimizer"])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {group["lr"] for group in optimizer.param_groups} == {1e-3}
    embedding = optimizer.state[tall[0]]
    assert (embedding["exp_avg"].numpy() == adam_state(spec)["optimizer.exp_avg.embed.weight"]).all()
    assert embedding["step"].item() == 5
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in tall + flat)


def test_the_settings_of_the_optimizer_are_never_guessed():
    spec = tiny_spec("gpt2")
    arrays = tiny_weights(spec) | adam_state(spec)
    with pytest.raises(PretraceError, match="the source does not say them"):
        layout_of("nanogpt", ArraysView(arrays), spec, plain_options(ArraysView({})))


def test_a_head_tied_to_the_embedding_is_a_second_key_for_the_same_span(tmp_path):
    spec = tiny_spec("gpt2")
    written("dcp", ArraysView(tiny_weights(spec)), spec, tmp_path)
    state = {"model": {name: torch.zeros(12, 64) for name in ("transformer.wte.weight", "lm_head.weight")}}
    dcp.load(state, checkpoint_id=tmp_path)
    assert torch.equal(state["model"]["lm_head.weight"], torch.from_numpy(tiny_weights(spec)["embed.weight"]))
    assert torch.equal(state["model"]["lm_head.weight"], state["model"]["transformer.wte.weight"])


def test_torch_reads_the_whole_distributed_state(tmp_path):
    spec = tiny_spec("llama")
    written("dcp", stateful(spec), spec, tmp_path / "d", shard_bytes=100_000)
    dcp_to_torch_save(tmp_path / "d", tmp_path / "all.pt")
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    assert saved["step"] == 5
    moments = saved["optimizer"]["state"]["model.embed_tokens.weight"]
    assert moments["step"] == 5
    assert (moments["exp_avg_sq"].numpy() == adam_state(spec)["optimizer.exp_avg_sq.embed.weight"]).all()
    assert (saved["model"]["model.norm.weight"].numpy() == tiny_weights(spec)["final_norm.weight"]).all()


def test_llmc_pads_the_vocabulary_with_zeros_and_says_how_many_rows_are_used(tmp_path):
    spec = tiny_spec("gpt2", vocab_size=130)
    weights = tiny_weights(spec)
    layout, _ = written("llmc", ArraysView(weights), spec, tmp_path, step=7)
    assert [file.path for file in layout.files] == ["model_00000007.bin", "DONE_00000007"]
    head = np.fromfile(tmp_path / "model_00000007.bin", "<i4", 256)
    assert head[:8].tolist() == [20240326, 3, 8, 130, 3, 4, 64, 256]
    embedding = np.fromfile(tmp_path / "model_00000007.bin", "<f4", 256 * 64, offset=1024).reshape(256, 64)
    assert (embedding[:130] == weights["embed.weight"]).all()
    assert not embedding[130:].any()


@pytest.mark.parametrize(
    ("format", "family", "changes", "why"),
    [
        ("llmc", "llama", {}, "a llama model"),
        ("nanogpt", "gpt_neox", {}, "a gpt_neox model"),
        ("llmc", "gpt2", {"activation": "relu"}, "relu"),
        ("nanogpt", "gpt2", {"norm_eps": 1e-6}, "1e-06"),
    ],
)
def test_models_that_a_format_cannot_hold_are_refused(format, family, changes, why):
    spec = tiny_spec(family, **changes)
    view = ArraysView(tiny_weights(spec))
    with pytest.raises(PretraceError, match=f"{format} cannot hold this: .*{why}"):
        layout_of(format, view, spec, plain_options(view))


def test_llmc_refuses_a_dtype_that_it_has_not():
    spec = tiny_spec("gpt2")
    view = ArraysView({name: array.astype(np.float16) for name, array in tiny_weights(spec).items()})
    with pytest.raises(PretraceError, match="declare one dtype"):
        layout_of("llmc", view, spec, plain_options(view))


@pytest.mark.parametrize(
    ("format", "has", "computes"), [("nanogpt", "gelu_tanh", "the exact"), ("llmc", "gelu", "the tanh form")]
)
def test_the_other_gelu_is_a_note(format, has, computes):
    for activation in ("gelu", "gelu_tanh"):
        spec = tiny_spec("gpt2", activation=activation)
        view = ArraysView(tiny_weights(spec))
        notes = layout_of(format, view, spec, plain_options(view)).notes
        assert any(f"computes {computes}" in note for note in notes) == (activation == has)


@pytest.mark.parametrize("format", ["nanogpt", "dcp", "orbax", "maxtext"])
def test_a_dtype_that_a_format_has_not_is_refused_by_its_name(format):
    spec = tiny_spec("gpt2")
    arrays = tiny_weights(spec)
    arrays["final_norm.weight"] = np.zeros(64, np.uint8)
    view = ArraysView(arrays, dtypes={"final_norm.weight": "float8_e4m3fn"})
    with pytest.raises(PretraceError, match="float8_e4m3fn"):
        layout_of(format, view, spec, plain_options(view))


def test_padding_rows_that_a_source_tells_of_are_a_note():
    spec = tiny_spec("gpt2")
    view = ArraysView(tiny_weights(spec), metadata={"vocab_rows_used": 10})
    assert "2 of 12 rows" in layout_of("hf", view, spec, plain_options(view)).notes[-1]
    assert not any("--pad-vocab" in note for note in layout_of("llmc", view, spec, plain_options(view)).notes)
