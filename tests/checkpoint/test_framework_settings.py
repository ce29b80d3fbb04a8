"""Settings of GPT-NeoX and Megatron-LM: what they say of a model, and which of them nobody may read past."""

import shutil

import pytest
import yaml

from assets import checkpoint_cases
from pretrace.checkpoint import open_state
from pretrace.checkpoint.framework_settings import check_settings, said_by
from pretrace.checkpoint.model_of import model_of
from pretrace.errors import PretraceError

NEOX, CORE = "gpt-neox", "megatron-core"
SHAPES = {"d_model": 64, "n_layers": 3, "position": "rotary", "norm": "layernorm", "head_dim": 16, "tied_head": False}


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (NEOX, {"gpt_j_residual": True, "gpt_j_tied": True}),
        (NEOX, {"use_mup": True}),
        (NEOX, {"sliding_window_width": 4096}),
        (NEOX, {"pos_emb": "alibi"}),
        (NEOX, {"pos_emb": "none"}),
        (NEOX, {"norm": "scalenorm"}),
        (NEOX, {"attention_config": [[["flash", "local"], 6]]}),
        (NEOX, {"moe_num_experts": 8}),
        (CORE, {"apply_layernorm_1p": True}),
        (CORE, {"rotary_interleaved": True}),
        (CORE, {"use_rope_scaling": True}),
        (CORE, {"squared_relu": True}),
        (CORE, {"window_size": (128, 0)}),
        (CORE, {"apply_residual_connection_post_layernorm": True}),
        (CORE, {"position_embedding_type": "none"}),
    ],
    ids=str,
)
def test_a_setting_that_makes_another_model_is_refused_by_its_name(table, settings):
    with pytest.raises(PretraceError, match=list(settings)[-1]):
        check_settings(table, settings, SHAPES)


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (NEOX, {"hidden_size": 128}),
        (NEOX, {"num_layers": 4}),
        (NEOX, {"pos_emb": "learned"}),
        (NEOX, {"norm": "te_rmsnorm"}),
        (NEOX, {"no_weight_tying": False}),
        (CORE, {"kv_channels": 8}),
        (CORE, {"untie_embeddings_and_output_weights": False}),
        (CORE, {"position_embedding_type": "learned_absolute"}),
        (CORE, {"normalization": "RMSNorm"}),
    ],
    ids=str,
)
def test_settings_that_the_tensors_contradict_are_refused(table, settings):
    with pytest.raises(PretraceError, match="the settings say"):
        check_settings(table, settings, SHAPES)


def test_settings_that_change_nothing_pass():
    neox = {
        "gpt_j_tied": True, "gpt_j_residual": False, "attention_config": ["flash", "global"], "pos_emb": "rotary",
        "norm": "te_layernorm", "moe_num_experts": 1, "use_mup": False, "sliding_window_width": None, "hidden_size": 64,
    }  # fmt: skip
    check_settings(NEOX, neox, SHAPES)
    core = {
        "position_embedding_type": "rope",
        "normalization": "LayerNorm",
        "num_experts": None,
        "rotary_interleaved": False,
    }
    check_settings(CORE, core, SHAPES)
    check_settings("hf gpt2", {"use_mup": True}, SHAPES)  # not a word of this framework


@pytest.mark.parametrize(
    ("settings", "activation"),
    [({"bias_gelu_fusion": True}, "gelu_tanh"), ({"bias_gelu_fusion": False}, "gelu"), ({"swiglu": True}, "silu"),
     ({"bias_gelu_fusion": False, "openai_gelu": True}, "gelu_tanh"), ({}, "gelu_tanh")],
)  # fmt: skip
def test_megatron_computes_the_tanh_form_only_in_its_fused_kernel(settings, activation):
    assert said_by(CORE, settings)["activation"][0] == activation


def test_transformers_names_without_a_config_have_transformers_gelu():
    assert said_by("hf gpt2", {})["activation"][0] == "gelu_tanh"
    assert said_by("nanogpt", {})["activation"][0] == "gelu"


def test_a_neox_checkpoint_with_such_a_setting_is_not_taken_for_a_usual_one(tmp_path):
    shutil.copytree(checkpoint_cases() / "good_neox_tp2", tmp_path / "neox")
    (path,) = (tmp_path / "neox").rglob("configs/*.yml")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"gpt_j_residual": True, "gpt_j_tied": True}))
    with open_state(tmp_path / "neox") as view, pytest.raises(PretraceError, match="gpt_j_tied True") as error:
        model_of(view)
    assert "--model" in error.value.mend
