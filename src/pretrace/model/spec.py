"""The specification of the decoder: families differ in data, not in code.

A spec is complete: every switch is written out. `family` says which published architecture it claims to be; the
claim is checked against the switches, so that only exact copies may call themselves gpt2, gpt_neox or llama. Anything
else is `native`: it trains here and is saved natively.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pretrace.spec import Spec

Family = Literal["gpt2", "gpt_neox", "llama", "native"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class InitSpec(Spec):
    """How the weights start. Biases start at 0, norm weights at 1.

    `gpt2`: normal(std); projections into the residual stream normal(std / sqrt(2 L)) (GPT-2 paper, section 2.3).
    `neox`: normal(sqrt(2 / (5 D))); projections into the residual stream normal(2 / (L sqrt(D))) (GPT-NeoX's small_init and
    wang_init); `std` is not used and must be 0.
    `normal`: normal(std) everywhere (transformers' Llama).
    """

    kind: Literal["gpt2", "neox", "normal"]
    std: NonNegativeFloat


class DropoutSpec(Spec):
    """Probabilities of dropping: after the embedding, in the attention weights, before each residual addition."""

    embed: NonNegativeFloat
    attention: NonNegativeFloat
    residual: NonNegativeFloat

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return bool(self.embed or self.attention or self.residual)


class MoeSpec(Spec):
    """A mixture of experts in the place of every feed-forward.

    A token goes to the `top_k` experts with the largest router probability; their outputs are added, weighted by these
    probabilities renormalised to 1 (Mixtral). Two losses are added to the training loss, each a mean over a micro-batch and
    over layers: `load_balance` x E sum_e f_e P_e (Switch Transformer, equations 4 to 6) and `router_z` x mean of the squared
    log-sum-exp of the router's logits (ST-MoE, equation 5). Every token is computed: there is no capacity.
    """

    n_experts: PositiveInt
    top_k: PositiveInt
    load_balance: NonNegativeFloat
    router_z: NonNegativeFloat


class ModelSpec(Spec):
    """Axes: V vocabulary rows, T positions, D model width, F feed-forward width, L blocks."""

    family: Family
    vocab_size: PositiveInt  # rows of the embedding, padding included
    max_seq_len: PositiveInt  # positions that learned embeddings hold; what rotary models were trained for
    n_layers: PositiveInt
    d_model: PositiveInt
    n_heads: PositiveInt
    n_kv_heads: PositiveInt  # below n_heads: grouped queries
    d_ff: PositiveInt
    position: Literal["learned", "rotary"]
    rotary_pct: NonNegativeFloat  # share of each head's lanes that is rotated; 0 with learned positions
    rotary_base: NonNegativeFloat  # 0 with learned positions
    norm: Literal["layernorm", "rmsnorm"]
    norm_eps: PositiveFloat
    norm_place: Literal["pre", "post"]
    residual: Literal["sequential", "parallel"]  # parallel: x + attention(norm1(x)) + mlp(norm2(x))
    activation: Activation
    gated: bool  # activation(gate(x)) * up(x); with silu this is SwiGLU
    bias: bool  # on every linear of attention and feed-forward
    tied_head: bool
    dropout: DropoutSpec
    init: InitSpec
    moe: MoeSpec | None = None  # None: one feed-forward a block

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is no multiple of n_heads {self.n_heads}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is no multiple of n_kv_heads {self.n_kv_heads}")
        if (self.position == "rotary") != (self.rotary_pct > 0 and self.rotary_base > 0):
            raise ValueError("rotary positions need rotary_pct and rotary_base above 0, learned ones need 0")
        if self.rotary_pct > 1:
            raise ValueError("rotary_pct is a share of at most 1")
        if self.position == "rotary" and (self.rotary_lanes % 2 or not self.rotary_lanes):
            raise ValueError(f"{self.rotary_lanes} rotated lanes cannot be paired")
        if self.norm_place == "post" and self.residual == "parallel":
            raise ValueError("a parallel residual has its norms before the branches")
        if self.moe is not None and self.family != "native":
            raise ValueError(f"a {self.family} model has no experts; call this variant 'native'")
        if self.moe is not None and self.moe.top_k > self.moe.n_experts:
            raise ValueError(f"top_k {self.moe.top_k} of {self.moe.n_experts} experts")
        for key, value in _CLAIMS.get(self.family, {}).items():
            if getattr(self, key) not in value:
                known = " or ".join(map(str, value))
                raise ValueError(f"a {self.family} model has {key} {known}; call this variant 'native'")
        if self.family in ("gpt2", "gpt_neox") and self.n_kv_heads != self.n_heads:
            raise ValueError(f"a {self.family} model has as many key heads as query heads; call this variant 'native'")
        return self

    @property
    def head_dim(self) -> int:
        """Lanes of one head."""
        return self.d_model // self.n_heads

    @property
    def d_kv(self) -> int:
        """Width of keys and of values over all their heads."""
        return self.n_kv_heads * self.head_dim

    @property
    def rotary_lanes(self) -> int:
        """Lanes of each head that are rotated."""
        return int(self.head_dim * self.rotary_pct)


# What makes an exact copy: transformers' GPT2, GPTNeoX and Llama.
_CLAIMS: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "position": ("learned",), "norm": ("layernorm",), "norm_place": ("pre",), "residual": ("sequential",),
        "activation": ("gelu_tanh", "gelu", "relu", "silu"), "gated": (False,), "bias": (True,), "tied_head": (True,),
    },
    "gpt_neox": {
        "position": ("rotary",), "norm": ("layernorm",), "norm_place": ("pre",), "gated": (False,), "bias": (True,),
    },
    "llama": {
        "position": ("rotary",), "rotary_pct": (1.0,), "norm": ("rmsnorm",), "norm_place": ("pre",),
        "residual": ("sequential",), "gated": (True,), "bias": (False,),
    },
}  # fmt: skip


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every parameter, in the decoder's order. Linear weights are [out, in]."""
    d = spec.d_model
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, d)}
    if spec.position == "learned":
        shapes["pos_embed.weight"] = (spec.max_seq_len, d)
    for i in range(spec.n_layers):
        block = f"blocks.{i}."
        shapes |= _norm(spec, block + "norm1")
        for name, rows in (("q", d), ("k", spec.d_kv), ("v", spec.d_kv), ("out", d)):
            shapes |= _linear(spec, f"{block}attn.{name}", rows, d)
        shapes |= _norm(spec, block + "norm2")
        if spec.moe is None:
            shapes |= _feed_forward(spec, block + "mlp")
            continue
        shapes[f"{block}mlp.router.weight"] = (spec.moe.n_experts, d)
        for expert in range(spec.moe.n_experts):
            shapes |= _feed_forward(spec, f"{block}mlp.experts.{expert}")
    shapes |= _norm(spec, "final_norm") if spec.norm_place == "pre" else {}
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, d)
    return shapes


# Projections into the residual stream: their spread shrinks with depth in gpt2 and neox.
_INTO_RESIDUAL = (".attn.out.weight", ".down.weight")


def std_of(spec: ModelSpec, name: str) -> float:
    """The standard deviation with which the weight matrix `name` starts."""
    into_residual = name.endswith(_INTO_RESIDUAL)
    if spec.init.kind == "gpt2":
        return spec.init.std / math.sqrt(2 * spec.n_layers) if into_residual else spec.init.std
    if spec.init.kind == "neox":
        if into_residual:
            return 2 / (spec.n_layers * math.sqrt(spec.d_model))
        return math.sqrt(2 / (5 * spec.d_model))
    return spec.init.std


def n_params(spec: ModelSpec) -> int:
    """Number of parameters; a tied head counts once."""
    return sum(math.prod(shape) for shape in tensor_shapes(spec).values())


def n_idle_params(spec: ModelSpec) -> int:
    """Parameters that a token does not pass through: the experts it is not sent to."""
    if spec.moe is None:
        return 0
    one = sum(math.prod(shape) for shape in _feed_forward(spec, "").values())
    return spec.n_layers * (spec.moe.n_experts - spec.moe.top_k) * one


def _feed_forward(spec: ModelSpec, name: str) -> dict[str, tuple[int, ...]]:
    d, f = spec.d_model, spec.d_ff
    shapes = _linear(spec, f"{name}.up", f, d)
    if spec.gated:
        shapes |= _linear(spec, f"{name}.gate", f, d)
    return shapes | _linear(spec, f"{name}.down", d, f)


def _norm(spec: ModelSpec, name: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (spec.d_model,)}
    if spec.norm == "layernorm":
        shapes[f"{name}.bias"] = (spec.d_model,)
    return shapes


def _linear(spec: ModelSpec, name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    if spec.bias:
        shapes[f"{name}.bias"] = (rows,)
    return shapes
