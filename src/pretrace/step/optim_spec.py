"""What an optimizer does to a parameter, as data: the rule, its constants, and which tensors are decayed.

Four respected programs call four different updates "AdamW". They differ in where epsilon is added, whether the moments are
corrected for their start at zero, when the decay is applied, and in the order of rounding; the last alone moves the last
bit of most parameters at the first step. Nothing here has a default. No torch in this file; `step.optim` computes.

    kernel           epsilon                 decay                       from
    torch_loop       sqrt(v / c2) + eps      p *= 1 - lr wd, before      torch.optim.AdamW(foreach=False)
    torch_foreach    the same                the same                    torch.optim.AdamW(foreach=True)
    torch_fused      the same                the same                    torch.optim.AdamW(fused=True)
    apex             sqrt(v / c2) + eps      inside: p -= lr (u + wd p)  Apex and DeepSpeed FusedAdam, adam_w_mode
    hf               sqrt(v) + eps           p -= lr wd p, after         transformers.AdamW until 4.x
    plain            as the fields say       as the fields say           the formula written out, one rounding an operation
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from pretrace.errors import PretraceError
from pretrace.spec import Spec

EpsPlace = Literal["corrected", "raw"]  # beside sqrt(v / (1 - beta2^t)), or beside sqrt(v)
DecayPlace = Literal["before", "within", "after", "gradient"]
AdamKernel = Literal["torch_loop", "torch_foreach", "torch_fused", "apex", "hf", "plain"]

# What each kernel can do: (epsilon places, decay places).
_CAN: dict[str, tuple[tuple[EpsPlace, ...], tuple[DecayPlace, ...]]] = {
    "torch_loop": (("corrected",), ("before", "gradient")),
    "torch_foreach": (("corrected",), ("before", "gradient")),
    "torch_fused": (("corrected",), ("before", "gradient")),
    "apex": (("corrected",), ("within", "gradient")),
    "hf": (("raw",), ("after",)),
    "plain": (("corrected", "raw"), ("before", "within", "after", "gradient")),
}


class ParamGroup(Spec):
    """Tensors that share a weight decay: those whose name fits a pattern and that have as many axes as asked."""

    params: tuple[str, ...]  # shell patterns over canonical names: "*.bias", "*norm*", "*"
    ndim: Literal["any", "vector", "matrix"]  # vector: at most one axis; matrix: two or more
    weight_decay: NonNegativeFloat
    lr_scale: PositiveFloat  # this group's lr is lr_at(step) * lr_scale

    def holds(self, name: str, ndim: int) -> bool:
        """Whether the tensor `name` with `ndim` axes belongs here."""
        shape_fits = self.ndim == "any" or (self.ndim == "matrix") == (ndim >= 2)
        return shape_fits and any(fnmatchcase(name, pattern) for pattern in self.params)


class AdamW(Spec):
    """Adam, with decay decoupled or (`decay_place="gradient"`) added to the gradient."""

    kind: Literal["adamw"]
    kernel: AdamKernel
    betas: tuple[float, float]
    eps: PositiveFloat
    eps_place: EpsPlace
    bias_correction: bool
    decay_place: DecayPlace
    groups: tuple[ParamGroup, ...]  # the first that holds a tensor has it; a tensor that none holds is an error

    @model_validator(mode="after")
    def _kernel_can(self) -> AdamW:
        eps_places, decay_places = _CAN[self.kernel]
        if self.eps_place not in eps_places:
            raise ValueError(f"kernel {self.kernel} adds eps to the {eps_places[0]} root only; use kernel plain")
        if self.decay_place not in decay_places:
            raise ValueError(f"kernel {self.kernel} decays {' or '.join(decay_places)} only; use kernel plain")
        if self.kernel.startswith("torch") and not self.bias_correction:
            raise ValueError(f"kernel {self.kernel} always corrects the moments; use kernel plain")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas lie in [0, 1)")
        return self


class Sgd(Spec):
    """torch.optim.SGD: decay is added to the gradient; the first momentum buffer is the gradient itself."""

    kind: Literal["sgd"]
    momentum: NonNegativeFloat
    dampening: NonNegativeFloat
    nesterov: bool
    groups: tuple[ParamGroup, ...]

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Sgd:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        return self


OptimizerSpec = Annotated[AdamW | Sgd, Field(discriminator="kind")]


def slots(spec: AdamW | Sgd) -> tuple[str, ...]:
    """The state tensors that every parameter carries, by torch's names."""
    if isinstance(spec, AdamW):
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if spec.momentum else ()


def assign(groups: tuple[ParamGroup, ...], ndims: Mapping[str, int]) -> dict[str, int]:
    """The index of the group that each named tensor falls into: the first that holds it.

    Parameters
    ----------
    ndims : number of axes of each tensor by canonical name.

    Raises
    ------
    PretraceError
        If a tensor falls into no group.

    Examples
    --------
    >>> rest = ParamGroup(params=("*",), ndim="any", weight_decay=0.1, lr_scale=1.0)
    >>> bare = ParamGroup(params=("*.bias", "*norm*"), ndim="any", weight_decay=0.0, lr_scale=1.0)
    >>> assign((bare, rest), {"head.weight": 2, "final_norm.weight": 1})
    {'head.weight': 1, 'final_norm.weight': 0}
    """
    return {name: _group_of(groups, name, ndim) for name, ndim in ndims.items()}


def _group_of(groups: tuple[ParamGroup, ...], name: str, ndim: int) -> int:
    for index, group in enumerate(groups):
        if group.holds(name, ndim):
            return index
    raise PretraceError(
        f"{name} falls into no optimizer group",
        "step.optimizer.groups",
        'end the list with a group for the rest: params ["*"], ndim any',
    )


def decay_all(weight_decay: float) -> tuple[ParamGroup, ...]:
    """One group: every tensor decays, as a plain `AdamW(model.parameters())` does it."""
    return (ParamGroup(params=("*",), ndim="any", weight_decay=weight_decay, lr_scale=1.0),)


def decay_matrices(weight_decay: float) -> tuple[ParamGroup, ...]:
    """Two groups, as nanoGPT and llm.c make them: tensors of two or more axes decay, the others do not."""
    matrices = ParamGroup(params=("*",), ndim="matrix", weight_decay=weight_decay, lr_scale=1.0)
    return (matrices, ParamGroup(params=("*",), ndim="any", weight_decay=0.0, lr_scale=1.0))


def spare_norms_and_biases(weight_decay: float) -> tuple[ParamGroup, ...]:
    """Two groups, as NeoX and the HF Trainer mean it: biases and norms do not decay, the rest does."""
    bare = ParamGroup(params=("*bias", "*norm*"), ndim="any", weight_decay=0.0, lr_scale=1.0)
    return (bare, ParamGroup(params=("*",), ndim="any", weight_decay=weight_decay, lr_scale=1.0))
