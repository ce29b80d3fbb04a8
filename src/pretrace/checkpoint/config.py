"""transformers' config.json as our `ModelSpec` and back; and the few sizes that layouts need.

Rotary settings stand in two places by age: `rotary_pct` and `rotary_emb_base` (GPT-NeoX), `rope_theta` (Llama), or
`rope_parameters` since transformers 5. Both are read, both are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrace.errors import PretraceError

if TYPE_CHECKING:  # pydantic starts in 0.15 s, which reading and comparing do not need
    from pretrace.model.spec import ModelSpec

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
"relu": "relu",
                "silu": "silu", "swish": "silu"}  # fmt: skip
_THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
_ARCHITECTURES = {"gpt_neox": "GPTNeoXForCausalLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


@dataclass(frozen=True, slots=True)
class Dims:
    """What name-and-layout tables need to know of a model; 0 where it is not known."""

    n_layers: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    rotary_lanes: int = 0

    @classmethod
    def of(cls, spec: ModelSpec) -> Dims:
        """The sizes of a complete specification."""
        return cls(spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.rotary_lanes)

    def sizes(self) -> dict[str, int]:
        """Sizes of the axes of tables that are known: h query heads, g key heads, d lanes of a head."""
        named = {"h": self.n_heads, "g": self.n_kv_heads, "d": self.head_dim}
        return {axis: n for axis, n in named.items() if n}

    def scale(self, name: str) -> float:
        """The factor that a table calls `name`; 1 for ''."""
        if not name:
            return 1.0
        if not self.head_dim:
            return math.nan
        root = math.sqrt(self.head_dim)
        return {"sqrt_head_dim": root, "1 / sqrt_head_dim": 1 / root, "1 / head_dim": 1 / self.head_dim}[name]


def dims_of(config: Any) -> Dims | None:
    """The sizes in a config.json of any decoder that names them as usual; None if the heads are not told."""
    if not isinstance(config, Mapping):
        return None
    heads = _count(config, "num_attention_heads", "n_head", "num_heads")
    width = _count(config, "hidden_size", "n_embd", "d_model")
    if not heads or not width:
        return None
    lanes = _count(config, "head_dim", "kv_channels") or width // heads
    # Megatron always writes num_query_groups; it counts only with the switch.
    groups = _count(config, "num_query_groups") if config.get("group_query_attention") else 0
    share = _rotary(config)[0] if config.get("model_type") != "gpt2" else 0.0
    return Dims(_count(config, "num_hidden_layers", "num_layers", "n_layer", "n_layers"), heads,
                _count(config, "num_key_value_heads", "num_kv_heads") or groups or heads, lanes, int(lanes * share))  # fmt: skip


def spec_of(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The complete specification that a config.json of gpt2, gpt_neox or llama states.

    Raises
    ------
    PretraceError
        If the family is another, or a switch is set that the decoder has not.
    """
    from pretrace.model.spec import ModelSpec
    from pretrace.spec import build

    kind = config.get("model_type")
    if kind not in _ARCHITECTURES:
        raise PretraceError(
            f"model_type {kind!r} is not one that pretrace runs", where, f"known are {', '.join(_ARCHITECTURES)}"
        )
    try:
        return build(ModelSpec, {"gpt_neox": _neox, "gpt2": _gpt2, "llama": _llama}[kind](config), where=where)
    except KeyError as error:
        raise PretraceError(f"the key {error.args[0]!r} is missing", where, "restore the config") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise PretraceError(f"a value cannot be understood: {error}", where, "restore the config") from None
    except PretraceError as error:
        variant, said, _ = error.what.partition("; call this variant 'native'")
        if not said and variant == error.what:
            raise
        mend = "exact gpt2, gpt_neox and llama models are read; this variant has no counterpart elsewhere"
        raise PretraceError(f"the model is no exact {kind}: {variant}", where, mend) from None


def config_of(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """The config.json that makes transformers build this model.

    Raises
    ------
    PretraceError
        If the model is no exact copy of a published family.
    """
    if spec.family not in _ARCHITECTURES:
        raise PretraceError(
            f"a {spec.family} model has no counterpart in transformers",
            "model.family",
            "keep it in pretrace's own names",
        )
    make = {"gpt_neox": _neox_config, "gpt2": _gpt2_config, "llama": _llama_config}[spec.family]
    common = {
        "architectures": [_ARCHITECTURES[spec.family]], "model_type": spec.family, "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_head, "bos_token_id": None, "eos_token_id": None, "dtype": dtype, "torch_dtype": dtype,
        "initializer_range": spec.init.std or 0.02, "use_cache": True,
    }  # fmt: skip
    return common | make(spec)


def _neox(c: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_scaled(c)
    share, base = _rotary(c)
    drop = float(c.get("hidden_dropout", 0.0))
    return _shared(c, "gpt_neox", "hidden_size", "num_hidden_layers", "num_attention_heads") | {
        "max_seq_len": c["max_position_embeddings"], "n_kv_heads": c["num_attention_heads"], "d_ff": c["intermediate_size"],
        "position": "rotary", "rotary_pct": share, "rotary_base": base, "norm": "layernorm", "norm_eps": c["layer_norm_eps"],
        "residual": "parallel" if c.get("use_parallel_residual", True) else "sequential", "gated": False,
        "activation": _activation(c.get("hidden_act", "gelu")), "bias": bool(c.get("attention_bias", True)),
        "tied_head": bool(c.get("tie_word_embeddings", False)), "init": {"kind": "normal",
        "std": c.get("initializer_range", 0.02)},
        "dropout": {"embed": drop, "attention": float(c.get("attention_dropout", 0.0)), "residual": drop},
    }  # fmt: skip


def _gpt2(c: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(c, scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, scale_attn_weights=True)
    return _shared(c, "gpt2", "n_embd", "n_layer", "n_head") | {
        "max_seq_len": c.get("n_positions", c.get("n_ctx")), "n_kv_heads": c["n_head"],
        "d_ff": c.get("n_inner") or 4 * c["n_embd"],
        "position": "learned", "rotary_pct": 0.0, "rotary_base": 0.0, "norm": "layernorm",
        "norm_eps": c.get("layer_norm_epsilon", 1e-5), "residual": "sequential", "gated": False,
        "activation": _activation(c.get("activation_function", "gelu_new")), "bias": True,
        "tied_head": bool(c.get("tie_word_embeddings", True)), "init": {"kind": "gpt2", "std": c.get("initializer_range", 0.02)},
        "dropout": {"embed": c.get("embd_pdrop", 0.1), "attention": c.get("attn_pdrop", 0.1),
        "residual": c.get("resid_pdrop", 0.1)},
    }  # fmt: skip


def _llama(c: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(c, mlp_bias=False, attention_bias=False)
    _refuse_scaled(c)
    lanes = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    if lanes * c["num_attention_heads"] != c["hidden_size"]:
        raise PretraceError(f"heads of {lanes} lanes do not make up the width {c['hidden_size']}", "config.json: head_dim",
                            "pretrace's decoder has head_dim = hidden_size / num_attention_heads")  # fmt: skip
    return _shared(c, "llama", "hidden_size", "num_hidden_layers", "num_attention_heads") | {
        "max_seq_len": c["max_position_embeddings"], "n_kv_heads": c.get("num_key_value_heads") or c["num_attention_heads"],
        "d_ff": c["intermediate_size"], "position": "rotary", "rotary_pct": 1.0, "rotary_base": _rotary(c)[1], "norm": "rmsnorm",
        "norm_eps": c["rms_norm_eps"], "residual": "sequential", "gated": True,
        "activation": _activation(c.get("hidden_act", "silu")),
        "bias": False, "tied_head": bool(c.get("tie_word_embeddings", False)),
        "init": {"kind": "normal", "std": c.get("initializer_range", 0.02)},
        "dropout": {"embed": 0.0, "attention": float(c.get("attention_dropout", 0.0)), "residual": 0.0},
    }  # fmt: skip


def _shared(c: Mapping[str, Any], family: str, width: str, layers: str, heads: str) -> dict[str, Any]:
    return {"family": family, "vocab_size": c["vocab_size"], "d_model": c[width], "n_layers": c[layers], "n_heads": c[heads],
            "norm_place": "pre"}  # fmt: skip


def _neox_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.d_model, "num_hidden_layers": spec.n_layers, "num_attention_heads": spec.n_heads,
        "intermediate_size": spec.d_ff, "max_position_embeddings": spec.max_seq_len,
        "hidden_act": _THEIR_ACTIVATION[spec.activation],
        "layer_norm_eps": spec.norm_eps, "use_parallel_residual": spec.residual == "parallel", "attention_bias": spec.bias,
        "rotary_pct": spec.rotary_pct, "rotary_emb_base": spec.rotary_base, "hidden_dropout": spec.dropout.residual,
        "attention_dropout": spec.dropout.attention,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rotary_base, "partial_rotary_factor": spec.rotary_pct},
    }  # fmt: skip


def _gpt2_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "n_embd": spec.d_model, "n_layer": spec.n_layers, "n_head": spec.n_heads, "n_inner": spec.d_ff,
        "n_positions": spec.max_seq_len,
        "activation_function": _THEIR_ACTIVATION[spec.activation], "layer_norm_epsilon": spec.norm_eps,
        "embd_pdrop": spec.dropout.embed, "attn_pdrop": spec.dropout.attention, "resid_pdrop": spec.dropout.residual,
    }  # fmt: skip


def _llama_config(spec: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.d_model, "num_hidden_layers": spec.n_layers, "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads, "head_dim": spec.head_dim, "intermediate_size": spec.d_ff,
        "max_position_embeddings": spec.max_seq_len, "hidden_act": _THEIR_ACTIVATION[spec.activation],
        "rms_norm_eps": spec.norm_eps, "attention_bias": False, "mlp_bias": False, "attention_dropout": spec.dropout.attention,
        "rope_theta": spec.rotary_base, "rope_parameters": {"rope_type": "default", "rope_theta": spec.rotary_base},
    }  # fmt: skip


def _rotary(c: Mapping[str, Any]) -> tuple[float, float]:
    """Share of the lanes that is rotated, and the base."""
    new = c.get("rope_parameters") or {}
    try:
        usual = 0.25 if c.get("model_type") == "gpt_neox" else 1.0  # what transformers takes where nothing is said
        share = new.get("partial_rotary_factor", c.get("rotary_pct", c.get("partial_rotary_factor", usual)))
        return float(share), float(new.get("rope_theta", c.get("rope_theta", c.get("rotary_emb_base", 10000.0))))
    except (TypeError, ValueError, AttributeError) as error:
        where = "config.json: rotary_pct, rope_theta or rope_parameters"
        raise PretraceError(f"the rotary settings cannot be understood: {error}", where, "restore the config") from None


def _refuse_scaled(c: Mapping[str, Any]) -> None:
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", None):
        raise PretraceError(f"rotary scaling {kind!r}, which pretrace's decoder has not", "config.json: rope_scaling",
                            "read it with transformers")  # fmt: skip


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise PretraceError(
            f"the activation {name!r} is not known", "config.json", f"known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _refuse(c: Mapping[str, Any], **usual: bool) -> None:
    for key, value in usual.items():
        if c.get(key, value) != value:
            raise PretraceError(
                f"{key} is {c[key]}, which pretrace's decoder has not",
                f"config.json: {key}",
                "read it with transformers",
            )


def _count(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if type(value := config.get(name)) is int and value > 0:
            return value
    return 0
