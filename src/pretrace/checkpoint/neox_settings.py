"""The settings of GPT-NeoX (NeoXArgs) that describe a model, as its `configs/*.yml` hold them.

Read from gpt-neox ea7aefd8 (megatron/neox_arguments/neox_args.py, megatron/model/transformer.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrace.model.spec import ModelSpec

# dtype of the weights -> NeoX's `precision`
PRECISIONS = {"float16": "fp16", "bfloat16": "bfloat16", "float32": "fp32"}


def neox_settings(
    spec: ModelSpec, dtype: str, *, tensor_parallel: int, pipeline: bool, linear1: bool
) -> dict[str, Any]:
    """All that NeoX must be told to build this model."""
    settings: dict[str, Any] = {
        "num_layers": spec.n_layers, "hidden_size": spec.d_model, "num_attention_heads": spec.n_heads,
        "seq_length": spec.max_seq_len, "max_position_embeddings": spec.max_seq_len,
        "pos_emb": spec.position, "no_weight_tying": not spec.tied_head, "gpt_j_residual": spec.residual == "parallel",
        "gpt_j_tied": False, "output_layer_parallelism": "column", "norm": spec.norm, "hidden_dropout": spec.dropout.residual,
        "attention_dropout": spec.dropout.attention, "model_parallel_size": tensor_parallel,
        "pipe_parallel_size": 1 if pipeline else 0, "padded_vocab_size": spec.vocab_size, "precision": PRECISIONS[dtype],
        # NeoX pads the tokenizer's rows to a multiple of this times the ranks: with one multiple it comes out at our rows.
        "make_vocab_size_divisible_by": spec.vocab_size // tensor_parallel,
    }  # fmt: skip
    if spec.position == "rotary":
        settings |= {"rotary_pct": spec.rotary_pct, "rotary_emb_base": spec.rotary_base}
    settings |= {"rms_norm_epsilon" if spec.norm == "rmsnorm" else "layernorm_epsilon": spec.norm_eps}
    if spec.n_kv_heads != spec.n_heads:
        settings["num_kv_heads"] = spec.n_kv_heads
    return settings | _feed_forward(spec, linear1)


def _feed_forward(spec: ModelSpec, linear1: bool) -> dict[str, Any]:
    if spec.gated:
        # transformer.py takes two thirds of intermediate_size for linear1, which holds up and gate.
        return {"activation": "swiglu", "intermediate_size": 3 * spec.d_ff, "mlp_multiple_of": 1, "use_bias_in_mlp": False,
                "use_bias_in_attn_linear": False, "use_bias_in_norms": False}  # fmt: skip
    # The fused kernel computes the tanh form of GELU (megatron/model/fused_bias_gelu.py).
    made: dict[str, Any] = {
        "activation": spec.activation.removesuffix("_tanh"), "bias_gelu_fusion": spec.activation == "gelu_tanh"
    }  # fmt: skip
    if linear1:
        made |= {"intermediate_size": spec.d_ff, "mlp_multiple_of": 1}
    return made
