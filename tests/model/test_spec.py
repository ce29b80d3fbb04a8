import json

import pytest
from pydantic import ValidationError

from assets import unpacked
from pretrace.model.presets import gpt2, gpt_neox, llama
from pretrace.model.spec import ModelSpec, n_params, tensor_shapes


def test_a_variant_may_not_call_itself_by_the_family_name():
    spec = gpt2(vocab_size=16, max_seq_len=8, n_layers=1, d_model=8, n_heads=2).model_dump()
    with pytest.raises(ValidationError, match="call this variant 'native'"):
        ModelSpec(**{**spec, "norm": "rmsnorm"})
    assert ModelSpec(**{**spec, "norm": "rmsnorm", "family": "native"}).norm == "rmsnorm"


def test_every_switch_must_be_written_out():
    spec = gpt2(vocab_size=16, max_seq_len=8, n_layers=1, d_model=8, n_heads=2).model_dump()
    del spec["norm_eps"]
    with pytest.raises(ValidationError, match="norm_eps"):
        ModelSpec(**spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 3}, "no multiple"),
        ({"rotary_pct": 0.0}, "rotary"),
        ({"rotary_pct": 0.1}, "paired"),
        ({"rotary_pct": 2.0}, "share"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    spec = gpt_neox(vocab_size=16, max_seq_len=8, n_layers=1, d_model=16, n_heads=2).model_dump()
    with pytest.raises(ValidationError, match=message):
        ModelSpec(**{**spec, **change})


# Published parameter counts (EleutherAI/pythia README; GPT-2 small of openai/gpt-2).
PYTHIA = {
    "70m": 70_426_624, "160m": 162_322_944, "410m": 405_334_016, "1b": 1_011_781_632,
    "1.4b": 1_414_647_808, "2.8b": 2_775_208_960, "6.9b": 6_857_302_016, "12b": 11_846_072_320,
}  # fmt: skip


@pytest.mark.parametrize("size", PYTHIA)
def test_pythia_parameter_counts_are_the_published_ones(size):
    config = json.loads((unpacked("configs") / f"configs/hf/pythia-{size}/config.json").read_text())
    spec = gpt_neox(
        vocab_size=config["vocab_size"],
        max_seq_len=config["max_position_embeddings"],
        n_layers=config["num_hidden_layers"],
        d_model=config["hidden_size"],
        n_heads=config["num_attention_heads"],
    )
    assert n_params(spec) == PYTHIA[size]


def test_gpt2_small_has_124_439_808_parameters():
    assert n_params(gpt2(vocab_size=50257, max_seq_len=1024, n_layers=12, d_model=768, n_heads=12)) == 124_439_808


def test_grouped_queries_have_narrow_keys_and_values():
    shapes = tensor_shapes(
        llama(vocab_size=16, max_seq_len=8, n_layers=1, d_model=16, n_heads=4, n_kv_heads=2, d_ff=20)
    )
    assert shapes["blocks.0.attn.q.weight"] == (16, 16)
    assert shapes["blocks.0.attn.k.weight"] == (8, 16)
    assert shapes["blocks.0.mlp.gate.weight"] == (20, 16)
