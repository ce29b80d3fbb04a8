"""Between the decoder and named arrays: loading a state, taking a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrace.dtypes import to_float
from pretrace.errors import PretraceError


class _Info(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class TensorSource(Protocol):
    """What `load` asks of a state: names, what a tensor is, and its elements (`pretrace.checkpoint.view.StateView` is one)."""

    def names(self) -> tuple[str, ...]:
        """All tensor names."""

    def info(self, name: str) -> _Info:
        """Dtype and shape of one tensor."""

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Elements [start, stop) of the flattened tensor in the stored dtype."""


@torch.no_grad()
def load(model: nn.Module, source: TensorSource) -> None:
    """Copies every parameter of `model` from `source` (same canonical names), in place; 16-bit floats widen exactly.

    Raises
    ------
    PretraceError
        If a parameter is missing, one is left over, or a shape differs.
    """
    fill(dict(model.named_parameters()), source, "the state")


@torch.no_grad()
def fill(tensors: Mapping[str, Tensor], source: TensorSource, what: str) -> None:
    """Copies every tensor from the one of its name in `source`, in place; `what` names the source in errors. As `load`."""
    _same_names(set(tensors), set(source.names()), what)
    for name, tensor in tensors.items():
        info = source.info(name)
        if tuple(info.shape) != tuple(tensor.shape):
            raise PretraceError(
                f"{name} has shape {tuple(info.shape)}, the model wants {tuple(tensor.shape)}", f"{what}: {name}",
                "use the model specification that this state was made with",
            )  # fmt: skip
        block = to_float(source.read(name, 0, tensor.numel()), info.dtype)
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(block)).view(tensor.shape))


def _same_names(wanted: set[str], given: set[str], what: str = "the state") -> None:
    if wanted == given:
        return
    missing, extra = sorted(wanted - given), sorted(given - wanted)
    parts = [f"{len(missing)} tensors are missing ({', '.join(missing[:3])})"] if missing else []
    parts += [f"{len(extra)} are unknown to the model ({', '.join(extra[:3])})"] if extra else []
    raise PretraceError("; ".join(parts), what, "use the model specification that this state was made with")


def snapshot(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """A copy of every parameter as float32, by name."""
    return {n: p.detach().to("cpu", torch.float32, copy=True).numpy() for n, p in model.named_parameters()}


@torch.no_grad()
def restore(model: nn.Module, arrays: Mapping[str, NDArray[np.float32]]) -> None:
    """Puts a snapshot back, in place."""
    parameters = dict(model.named_parameters())
    _same_names(set(parameters), set(arrays))
    for name, parameter in parameters.items():
        parameter.copy_(torch.from_numpy(arrays[name]))
