"""What a framework's own settings say of a model: GPT-NeoX's NeoXArgs, Megatron-LM's args, nanoGPT's model_args.

What no setting says is what the framework's code does without one, and counts as `assumed`. A setting that changes what is
computed, and that the decoder has not, is refused by its name: whoever reads past it proves another model than was trained.
Read from gpt-neox ea7aefd8 (megatron/neox_arguments/neox_args.py, model/transformer.py), Megatron-LM d98e8a64
(training/arguments.py, core/transformer/transformer_config.py), nanoGPT 3adf61e.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pretrace.errors import PretraceError

Values = dict[str, tuple[Any, str]]  # key of ModelSpec -> value, and `read ...` or `assumed: ...`

# Settings that leave no trace in names or shapes, and the values under which the decoder computes the same.
_NEOX_HAS: dict[str, tuple[Any, ...]] = {
    "use_mup": (False,), "sliding_window_width": (), "opt_pos_emb_offset": (0,), "use_qk_layernorm": (False,),
    "moe_num_experts": (0, 1), "mlp_type": ("regular", "llama"), "pos_emb": ("learned", "rotary"),
    "norm": ("layernorm", "te_layernorm", "rmsnorm", "te_rmsnorm"),
}  # fmt: skip
_MEGATRON_HAS: dict[str, tuple[Any, ...]] = {
    "apply_residual_connection_post_layernorm": (False,), "apply_layernorm_1p": (False,),
    "layernorm_zero_centered_gamma": (False,), "rotary_interleaved": (False,), "rotary_seq_len_interpolation_factor": (1,),
    "use_rope_scaling": (False,), "no_rope_freq": (), "squared_relu": (False,), "quick_geglu": (False,),
    "qk_layernorm": (False,), "multi_latent_attention": (False,), "num_experts": (0, 1), "window_size": (), "softmax_scale": (),
    "softmax_type": ("vanilla",), "attention_output_gate": (False,), "experimental_attention_variant": (),
    "glu_linear_offset": (0,), "activation_func_clamp_value": (), "use_mup": (False,),
    "position_embedding_type": ("learned_absolute", "rope"), "normalization": ("LayerNorm", "RMSNorm"),
}  # fmt: skip
_POSITIONS = {"learned": "learned", "learned_absolute": "learned", "rotary": "rotary", "rope": "rotary"}
# Settings that say what the tensors say too: the key of ModelSpec and, for words, our word.
_SHAPES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "hidden_size": ("d_model", {}), "num_layers": ("n_layers", {}), "kv_channels": ("head_dim", {}),
    "no_weight_tying": ("tied_head", {"True": False, "False": True}),
    "untie_embeddings_and_output_weights": ("tied_head", {"True": False, "False": True}),
    "pos_emb": ("position", _POSITIONS), "position_embedding_type": ("position", _POSITIONS),
    "norm": ("norm", {"te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}),
    "normalization": ("norm", {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}),
}  # fmt: skip


def said_by(table: str, config: Mapping[str, Any]) -> Values:
    """What the settings of the framework with this layout say, or what its code does without them.

    Raises
    ------
    PretraceError
        If nothing beside the tensors can say it.
    """
    if table.startswith("gpt-neox"):
        return _neox(config)
    if table in ("nanogpt", "hf gpt2"):
        return _gpt2(table, config)
    if table.startswith("megatron"):
        return _megatron(config)
    if table.startswith("maxtext llama"):
        return _assumed("MaxText's base.yml", norm_eps=1e-5, rotary_base=10000.0, rotary_pct=1.0, activation="silu",
                        residual="sequential", max_seq_len=2048)  # fmt: skip
    if "gpt3" in table:
        return _assumed("MaxText's gpt3 configurations", norm_eps=1e-5, activation="gelu_tanh", residual="sequential")
    if table in ("hf llama", "meta llama", "hf gpt_neox"):
        raise PretraceError(
            "no configuration came with the tensors", table, "put config.json beside it, or use --model FILE"
        )
    raise PretraceError(f"models in the layout {table} are not converted", table, "convert gpt2, gpt_neox or llama")


def check_settings(table: str, config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Holds the settings against what the decoder can compute, and against what the tensors' shapes say (`found`).

    Raises
    ------
    PretraceError
        That names the first setting that makes another model, or that the tensors contradict.
    """
    if not table.startswith(("gpt-neox", "megatron")):
        return
    framework = "GPT-NeoX" if table.startswith("gpt-neox") else "Megatron-LM"
    for key, value in _not_ours(framework, config):
        raise PretraceError(
            f"{framework} trained with {key} {value!r}, which pretrace's decoder does not compute", f"settings: {key}",
            "no other format holds this model; if the setting is wrong, --model FILE says what the model is",
        )  # fmt: skip
    for key, (ours, words) in _SHAPES.items():
        value = config.get(key)
        if value is not None and ours in found and words.get(str(value), value) != found[ours]:
            raise PretraceError(
                f"the settings say {key} {value!r}, the tensors have {ours} {found[ours]!r}", f"settings: {key}",
                "restore the settings of this checkpoint, or name the right ones with --model FILE",
            )  # fmt: skip


def _not_ours(framework: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    has = _NEOX_HAS if framework == "GPT-NeoX" else _MEGATRON_HAS
    yield from (
        (key, config[key]) for key, ours in has.items() if config.get(key) is not None and config[key] not in ours
    )
    if config.get("gpt_j_residual") and config.get("gpt_j_tied"):
        yield "gpt_j_tied", True  # one norm for both branches; the second one is stored and not used
    if others := set(_words(config.get("attention_config"))) - {"global", "flash"}:
        yield "attention_config", sorted(others)[0]


def _words(nested: Any) -> Iterator[str]:
    """All words of `[[["global", "local"], 6]]`, and of a list that was multiplied out."""
    if isinstance(nested, str):
        yield nested
    elif isinstance(nested, list | tuple):
        for one in nested:
            yield from _words(one)


def _assumed(where: str, **values: Any) -> Values:
    return {key: (value, f"assumed: {where}") for key, value in values.items()}


def _gpt2(table: str, config: Mapping[str, Any]) -> Values:
    if config.get("bias") is False:
        raise PretraceError(
            "the model was made with bias=False", "model_args: bias", "the other formats have biases only"
        )
    where, gelu = (
        ("nanoGPT's model.py: nn.GELU(), eps 1e-5", "gelu")
        if table == "nanogpt"
        else ("transformers' GPT2Config: gelu_new, eps 1e-5", "gelu_tanh")
    )
    made = _assumed(where, norm_eps=1e-5, activation=gelu, residual="sequential")
    return made | ({"n_heads": (config["n_head"], "read model_args")} if "n_head" in config else {})


def _neox(config: Mapping[str, Any]) -> Values:
    known: dict[str, tuple[str, Any]] = {
        "n_heads": ("num_attention_heads", 0), "rotary_pct": ("rotary_pct", 1.0), "rotary_base": ("rotary_emb_base", 10000),
        "norm_eps": ("layernorm_epsilon", 1e-5),
        "max_seq_len": ("seq_length" if config.get("max_position_embeddings") is None else "max_position_embeddings", 2048),
    }  # fmt: skip
    if config.get("norm") in ("rmsnorm", "te_rmsnorm"):
        known["norm_eps"] = ("rms_norm_epsilon", 1e-8)
    made: Values = {key: _or_default(config, *rule) for key, rule in known.items()}
    made["n_kv_heads"] = (config.get("num_kv_heads") or made["n_heads"][0], made["n_heads"][1])
    parallel, why = _or_default(config, "gpt_j_residual", False)
    made["residual"] = ("parallel" if parallel else "sequential", why)
    made["activation"] = _neox_activation(config)
    return made


def _neox_activation(config: Mapping[str, Any]) -> tuple[str, str]:
    name, why = _or_default(config, "activation", "gelu")
    if name == "swiglu" or config.get("mlp_type") == "llama":
        return "silu", why
    # The fused kernel computes the tanh form, whatever `activation` says (megatron/model/fused_bias_gelu.py).
    if name == "gelu" and config.get("bias_gelu_fusion"):
        return "gelu_tanh", "read configs: bias_gelu_fusion computes the tanh form"
    known = {"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}
    if name not in known:
        raise PretraceError(f"the activation {name!r} is not converted", "configs: activation", "gelu, relu or swiglu")
    return known[name], why


def _megatron(config: Mapping[str, Any]) -> Values:
    known: dict[str, tuple[str, Any]] = {
        "n_heads": ("num_attention_heads", 0), "rotary_pct": ("rotary_percent", 1.0), "rotary_base": ("rotary_base", 10000),
        "norm_eps": ("norm_epsilon" if "norm_epsilon" in config else "layernorm_epsilon", 1e-5),
        "max_seq_len": ("max_position_embeddings", 2048),
    }  # fmt: skip
    made: Values = {key: _or_default(config, *rule) for key, rule in known.items()}
    if config.get("group_query_attention") and config.get("num_query_groups"):
        made["n_kv_heads"] = (config["num_query_groups"], "read args")
    made["activation"] = _megatron_activation(config)
    made["residual"] = ("sequential", "read table")  # Megatron-LM has no other
    return made


def _megatron_activation(config: Mapping[str, Any]) -> tuple[str, str]:
    if config.get("swiglu"):
        return "silu", "read args"
    if config.get("openai_gelu"):
        return "gelu_tanh", "read args: openai_gelu"
    fused = config.get("bias_gelu_fusion")
    if fused is None:
        return "gelu_tanh", "assumed: Megatron's bias_gelu computes tanh"
    # Without the fused kernel it is F.gelu, the exact one.
    return ("gelu_tanh" if fused else "gelu"), "read args: bias_gelu_fusion"


def _or_default(config: Mapping[str, Any], key: str, default: Any) -> tuple[Any, str]:
    if key in config and config[key] is not None:
        return config[key], "read configs"
    return default, f"assumed: the framework's default of {key}"
