"""The plan of a transformers folder, byte by byte, and its shards as transformers reads them."""

import json

import numpy as np
import pytest
import transformers

from assets import checkpoint_cases
from layouts import covers, tiny_spec, tiny_weights
from pretrace.checkpoint import (
    ArraysView,
    canonical,
    layout_of,
    open_state,
    plain_options,
    read_all,
    spec_of,
    survey,
    write_layout,
)
from pretrace.checkpoint.layout import Block, Bytes, groups_of
from pretrace.errors import PretraceError


def test_the_file_is_its_header_and_the_tensors_one_after_the_other():
    spec = tiny_spec("gpt2")
    layout = layout_of("hf", ArraysView(tiny_weights(spec)), spec, plain_options(ArraysView({})))
    weights, config = layout.files
    head, first, second = weights.pieces[:3]
    assert (weights.path, config.path) == ("model.safetensors", "config.json")
    assert isinstance(head, Bytes)
    assert int.from_bytes(head.data[:8], "little") == len(head.data) - 8
    assert first == Block(len(head.data), "transformer.wte.weight", 0, 12 * 64, 4)
    assert second.offset == len(head.data) + 12 * 64 * 4
    assert covers(weights)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
def test_shards_are_read_as_the_one_file_is(family, tmp_path):
    spec = tiny_spec(family)
    weights = ArraysView(tiny_weights(spec))
    layout = layout_of("hf", weights, spec, plain_options(weights, shard_bytes=40_000))
    assert len(layout.files) > 4
    assert all(covers(file) for file in layout.files)
    write_layout(layout, tmp_path)
    seen = survey(tmp_path)
    assert seen.findings == ()
    ours = canonical(seen.view)
    assert set(ours.names()) == set(weights.names())
    assert all((read_all(ours, name) == read_all(weights, name)).all() for name in weights.names())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(weights.info(name).size_bytes for name in weights.names())


def test_transformers_loads_shards_and_the_tied_head_that_was_left_out(tmp_path):
    with open_state(checkpoint_cases() / "good_gpt2_tied") as view:
        ours = canonical(view)
        arrays = {name: read_all(ours, name) for name in ours.names()}
        arrays["head.weight"] = arrays["embed.weight"]
        twice = ArraysView(arrays, dtypes={name: ours.info("embed.weight").dtype for name in arrays})
        spec = spec_of(view.metadata()["config"])
    layout = layout_of("hf", twice, spec, plain_options(twice, shard_bytes=100_000))
    assert layout.dropped == ("head.weight",)
    write_layout(layout, tmp_path)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.transformer.wte.weight


def test_optimizer_state_has_no_place_and_is_said_to_be_dropped():
    spec = tiny_spec("llama")
    arrays = tiny_weights(spec)
    arrays["optimizer.exp_avg.embed.weight"] = np.zeros((12, 64), np.float32)
    layout = layout_of("hf", ArraysView(arrays), spec, plain_options(ArraysView({})))
    assert layout.dropped == ("optimizer.exp_avg.embed.weight",)


def test_a_model_that_lacks_a_tensor_is_refused_by_its_name():
    spec = tiny_spec("llama")
    arrays = tiny_weights(spec)
    del arrays["blocks.1.mlp.gate.weight"]
    with pytest.raises(PretraceError, match=r"blocks\.1\.mlp\.gate\.weight"):
        layout_of("hf", ArraysView(arrays), spec, plain_options(ArraysView({})))


def test_a_format_that_nobody_writes_is_refused_with_those_that_are():
    with pytest.raises(PretraceError, match="'gguf' is no format that is written"):
        layout_of("gguf", ArraysView({}), tiny_spec("gpt2"), plain_options(ArraysView({})))


def test_tensors_larger_than_a_shard_are_shards_of_their_own():
    assert list(groups_of([("a", 9), ("b", 1), ("c", 1)], 5)) == [("a",), ("b", "c")]
    assert list(groups_of([("a", 9), ("b", 1)], None)) == [("a", "b")]
